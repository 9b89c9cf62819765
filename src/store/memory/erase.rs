//! Erasing in memory.

use std::convert::Infallible;

use super::tables::Tables;
use crate::store::{ErasureTarget, Errand, Trace, TracedRun, Traces, erase::Sought};

impl Tables {
    /// Finds everything of a target.
    pub(super) fn traces(&self, target: &ErasureTarget) -> Traces {
        let mut sought = Sought::new(target);
        for header in self.headers.values() {
            let tags = serde_json::to_string(&header.tags).expect("tags are plain data");
            let optional = [&header.status_text, &header.error, &header.waiting_on, &header.used];
            let mut texts: Vec<&str> = optional.into_iter().flatten().map(String::as_str).collect();
            texts.extend([&*header.principal, &*tags]);
            sought.header(header.num, &header.principal, &texts);
        }
        if sought.follows() {
            for (run, header) in &self.headers {
                if let Some((parent, _)) = header.parent {
                    sought.called(*run, parent);
                }
            }
            for row in self.journal.values() {
                sought.entry(row.run, &row.bytes);
            }
            let created = |run| Ok(self.headers.get(&run).map(|header| header.created_ms));
            let Ok(()) = sought.follow::<Infallible>(created);
        }
        if sought.reads_contents() {
            self.parts(&mut sought);
        }
        let runs: Vec<u64> = sought.runs().collect();
        for header in runs.iter().filter_map(|run| self.headers.get(run)) {
            sought.run(TracedRun {
                num: header.num,
                created_ms: header.created_ms,
                ended: header.status.is_ended(),
                entries: u64::from(header.seq),
                bytes: header.bytes,
                files: self.artifacts.values().filter(|it| it.run == header.num).count() as u64,
            });
        }
        self.rows(&mut sought);
        sought.into_traces()
    }

    fn parts(&self, sought: &mut Sought) {
        for row in self.journal.values() {
            sought.part(row.run, &row.bytes);
        }
        for task in self.tasks.values() {
            for text in [Some(&task.prompt), task.summary.as_ref(), task.question.as_ref()] {
                sought.part(task.run, text.map_or("", |text| text).as_bytes());
            }
        }
        for row in &self.outbox {
            let (Errand::Signal { payload: text, .. }
            | Errand::Cancel { reason: text, .. }
            | Errand::Change { payload: text, .. }) = &row.errand;
            sought.part(row.run, text.as_bytes());
        }
        for row in &self.evidence {
            sought.part(row.run, row.body.as_bytes());
        }
        for frame in self.frames.values() {
            sought.part(frame.run, frame.params.as_bytes());
        }
        for ((run, _), answers) in &self.receipts {
            for value in answers.iter().filter_map(|it| it.value.as_ref()) {
                sought.part(*run, value.as_bytes());
            }
        }
        for file in self.artifacts.values() {
            sought.part(file.run, file.name.as_bytes());
            if let Some(data) = self.blobs.get(&file.hash) {
                sought.part(file.run, data);
            }
        }
    }

    fn rows(&self, sought: &mut Sought) {
        for row in self.state.values() {
            sought.state(&row.scope, &row.key, &row.value);
        }
        for ((scope, from, relation, to), metadata) in &self.links {
            sought.link([scope, from, relation, to], metadata.as_deref().unwrap_or_default());
        }
        for ((layer, key), (value, _)) in &self.kept {
            sought.kept(layer, key, value);
        }
        for row in self.idempotency.values() {
            sought.answer([&row.principal, &row.route, &row.key], &row.answer);
        }
        for row in self.sessions.values() {
            let reason = row.reason.as_deref().unwrap_or_default();
            sought.session(&row.id, &row.principal, &[&row.operator, reason]);
        }
        for row in &self.tokens {
            sought.token(&row.jti, &row.claims);
        }
        for (_, key) in self.stats.rows.keys() {
            sought.sums(&key.name);
        }
        for header in self.headers.values() {
            sought.source_of(header.num, &header.hash);
        }
        for row in &self.blueprints {
            let is_published = row.publisher.is_some() || self.is_named(&row.hash);
            sought.blueprint((&row.hash, &row.name), &row.bundle, is_published);
        }
        for (key, value) in &self.meta {
            sought.stays("host", &[key.as_bytes(), value.as_bytes()]);
        }
        for row in &self.audit {
            sought.stays("audit", &[row.line.as_bytes()]);
        }
    }

    /// Returns true if a name stands for a version.
    fn is_named(&self, hash: &str) -> bool {
        self.names.values().any(|(named, _)| named == hash)
    }

    /// Removes a row.
    pub(super) fn erase(&mut self, trace: Trace) {
        match trace {
            Trace::Run(run) => {
                self.delete_run(run);
                self.frames.retain(|_, frame| frame.run != run);
                self.stats.costly.retain(|(_, of), _| *of != run);
            }
            Trace::State { scope, key } => self.delete_state(scope, key),
            Trace::Link { scope, from, relation, to } => {
                self.links.remove(&(scope, from, relation, to));
            }
            Trace::Kept { layer, key } => {
                self.kept.remove(&(layer, key));
            }
            Trace::Answer { principal, route, key } => {
                self.idempotency.remove(&(principal, route, key));
            }
            Trace::Session(id) => {
                self.frames.retain(|(of, _), _| *of != id);
                self.sessions.remove(&id);
            }
            Trace::Token(jti) => self.tokens.retain(|row| row.jti != jti),
            Trace::Sums(name) => {
                self.stats.rows.retain(|(_, key), _| key.name != name);
                self.stats.costly.retain(|_, run| run.blueprint != name);
            }
            Trace::Blueprint { hash, .. } => {
                let has_run = self.headers.values().any(|run| run.hash == hash);
                if !has_run && !self.is_named(&hash) {
                    self.blueprints.retain(|row| row.hash != hash || row.publisher.is_some());
                }
            }
        }
    }
}
