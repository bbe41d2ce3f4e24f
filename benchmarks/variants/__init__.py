"""What is compared, a module for each tool: FUNCTION(settings) makes what `child` measures."""
