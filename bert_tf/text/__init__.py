"""Text to ids. In: strings and a vocabulary file. Out: ids and pieces, exactly as Google's BERT gives them."""
