//! A host embedded in another program: runs without HTTP.

use std::future::pending;

use super::{Host, HostError};
use crate::{
    blueprint::Bundle,
    engine::{Bearer, Caller, EngineError, Program, RunView, StartRun, WaitFor},
    protocol::Json,
};

impl Host {
    /// Returns the owner of the host, as the caller of engine methods.
    ///
    /// # Errors
    /// Fails when the admin token was revoked or has expired.
    pub fn owner(&self) -> Result<Caller, HostError> {
        match self.engine().authenticate(self.admin_token())? {
            Bearer::Caller(caller) => Ok(caller),
            Bearer::Holder(_) => {
                let message = "the admin token is a task's handle".to_owned();
                Err(EngineError::Unauthenticated(message).into())
            }
        }
    }

    /// Runs the source of a blueprint and waits for its end, without a limit of time.
    ///
    /// # Errors
    /// Fails when the source is not a blueprint, the input does not fit it, or the host stops. A
    /// run that fails is not an error: its view reports that.
    ///
    /// # Cancel safety
    /// May be dropped at any time; a run that was started continues.
    pub async fn run(&self, source: &str, input: &serde_json::Value) -> Result<RunView, HostError> {
        let bundle = Bundle::from_source("embedded.lua", source)
            .map_err(|error| EngineError::BadRequest(error.to_string()))?;
        let start = StartRun {
            input: Json::from(input),
            trigger: Json::from(serde_json::json!({ "kind": "embedded" })),
            ..StartRun::new(Program::Bundle(bundle))
        };
        let (owner, until) = (self.owner()?, WaitFor::Ended);
        let made = self.engine().start_and_wait(&owner, start, None, until, pending()).await?;
        Ok(made.view().expect("the owner reads every run"))
    }
}
