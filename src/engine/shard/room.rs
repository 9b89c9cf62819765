//! Whether the host has room for a run in memory.

use crate::{
    engine::{
        run::account::Account,
        settings::ROOM_MS,
        shard::owner::Shard,
        shared::message::{Internal, RunMsg},
    },
    memory::Level,
};

impl Shard {
    /// Whether a run may be read into memory for a message. What ends work, or lets it rest, always
    /// may: it makes room.
    pub(crate) fn has_room_for(&self, num: u64, message: &RunMsg) -> bool {
        let memory = &self.shared.memory;
        if memory.level() != Level::Full || message.is_cancel() || message.is_pause() {
            return true;
        }
        self.shared.make_room();
        // One at a time goes on; it takes the right to when its flow is about to.
        memory.pass(num).is_some()
    }

    /// Has a message for a run that cannot be read now come again, or refuses it.
    pub(crate) fn put_off(&mut self, num: u64, message: RunMsg) {
        match message {
            RunMsg::Internal(Internal::Wake) => self.wake_later(num, ROOM_MS),
            _ => self.carry_later(num, ROOM_MS),
        }
        message.refuse(self.shared.no_room("read a run into memory"));
    }

    /// An account for a run that is to be in memory.
    pub(crate) fn account(&self) -> Account {
        Account::new(self.shared.memory.share(), self.shared.settings.limits.held)
    }
}
