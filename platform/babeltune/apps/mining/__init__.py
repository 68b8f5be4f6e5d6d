"""Pairs of translations found in text that is not aligned, scored by margin, in bounded memory."""
