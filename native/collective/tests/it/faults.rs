//! Soon.
use crate::harness;
#[test]
fn a_rank_in_its_own_process() {
    let _ = harness::scenario();
}
