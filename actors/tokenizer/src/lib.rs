//! Tokenizers, incremental detokenization and the tokenizer actor pool.
