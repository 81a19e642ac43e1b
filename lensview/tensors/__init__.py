"""What a screen or a page can show of a tensor: pictures, statistics, texts, token labels.

Knows tensors and tokenizers, and nothing of models, runs or widgets. Import from the modules:
`tiles` (pictures, single elements, differences), `stats`, `labels`.
"""
