-- Every word is indexed with its scope before it, so that a scope is searched at the cost of what
-- fits in it: as a word of its own the scope was in every list of every search, and in its rank.
DROP TABLE state_text;
CREATE VIRTUAL TABLE state_text USING fts5 (
    key, text,
    content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 0'
);
INSERT INTO state_text (state_text, rank) VALUES ('rank', 'bm25(4.0, 1.0)');
