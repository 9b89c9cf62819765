-- Enough rows that the planner has a choice.
INSERT INTO runs (num, cursor, updated_ms, bytes, seq, steps, steps_done, epoch, created_ms, nonce,
                  wake_at_ms, ended_ms, parent_run, parent_step, status, blueprint, hash, principal)
SELECT n, n * 3, n, 100, 3, 1, 1, 1, n, n,
       CASE WHEN n % 50 = 0 THEN n END, CASE WHEN n % 50 <> 0 THEN n END,
       CASE WHEN n % 10 = 0 THEN n / 10 END, CASE WHEN n % 10 = 0 THEN 1 END,
       CASE WHEN n % 50 = 0 THEN 1 WHEN n % 500 = 7 THEN 6 ELSE 5 END,
       convert_to('b' || n % 500, 'UTF8'), 'h', convert_to('p' || n % 500, 'UTF8')
FROM generate_series(1, 20000) n;
INSERT INTO journal (run, seq, lsn, begins, entry)
SELECT n, s, n * 3 + s, s = 1, 'x' FROM generate_series(1, 5000) n, generate_series(1, 3) s;
INSERT INTO journal (run, seq, lsn, begins, entry)
SELECT 7, s, 1000000 + s, s % 1000 = 0, 'x' FROM generate_series(4, 3000) s;
UPDATE runs SET seq = 3000 WHERE num = 7;
INSERT INTO run_tags SELECT 'a', 'b', n, n FROM generate_series(1, 20000, 3) n;
INSERT INTO run_words
SELECT n, (CASE WHEN n = 10007 THEN '''rare''' ELSE '''failed'' ''w' || n % 3000 || '''' END)::tsvector
FROM generate_series(7, 20000) n;
INSERT INTO state (place, scope, key, revision, updated_ms, session_bound, value, words)
SELECT sha256(convert_to(n::text, 'UTF8')), convert_to('custom:' || n % 10, 'UTF8'),
       convert_to('k' || n, 'UTF8'), 1, 1, false, '1', ('''w' || n % 500 || ''':1A')::tsvector
FROM generate_series(1, 20000) n;
INSERT INTO state_links (place, scope, from_key, relation, to_key)
SELECT sha256(convert_to(n::text, 'UTF8')), 's', convert_to('f' || n % 1000, 'UTF8'), 'r',
       convert_to('t' || n, 'UTF8')
FROM generate_series(1, 10000) n;
INSERT INTO kept (place, layer, key, value)
SELECT sha256(convert_to(n::text, 'UTF8')), convert_to('l' || n % 4, 'UTF8'),
       convert_to('k' || n, 'UTF8'), '1'
FROM generate_series(1, 10000) n;
INSERT INTO tasks (run, step, attempt, epoch, scheduled_ms, opened_ms, graces, phase, agent, operator,
                   kind, prompt)
SELECT n, 1, 1, 1, 1, 1, 0, 0, 'a', 'o', 'k', '1' FROM generate_series(1, 5000) n;
INSERT INTO blueprints (hash, name, created_ms, bundle)
SELECT sha256(convert_to(n::text, 'UTF8')), 'n', n, 'x' FROM generate_series(1, 5000) n;
ANALYZE;
