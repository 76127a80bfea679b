//! Handles of operations in flight.
#![allow(missing_docs)]
use crate::error::Result;

pub struct Work;
impl Work {
    pub fn wait(self) -> Result<()> {
        unimplemented!()
    }
    pub fn is_done(&self) -> bool {
        unimplemented!()
    }
}
