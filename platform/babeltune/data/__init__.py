"""From corpora to stores: clean pairs, tokens, teacher vectors, mined negatives."""
