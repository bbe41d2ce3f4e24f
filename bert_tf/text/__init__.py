"""Text to ids. In: strings and a vocabulary file. Out: ids and pieces, exactly as its authors' tokenizer gives them."""
