"""Compressed arrays and their coding: shared weights, relative indices, Huffman codes, sections of a file."""
