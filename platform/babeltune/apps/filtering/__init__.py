"""Corpus filtering: given pairs scored by margin, the best kept, and judged by the translation models they train."""
