//! Jobs and checkpoints that are almost right: used or refused, never a panic.

use std::fs;

use flambeau_train::{Hooks, TrainingJob};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::model::{Config, Net, Optimizer};
use crate::mutation::{cases, mutated};
use crate::support::{Bench, train, try_train};

fn config() -> Config {
    Config::new(Net::Linear, Optimizer::Adam { rate: 0.01 })
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn an_almost_right_job_is_read_to_the_same_or_refused(bytes in mutated(jobs())) {
        if let Ok(job) = TrainingJob::from_json(&String::from_utf8_lossy(&bytes)) {
            let text = job.to_json();
            prop_assert_eq!(TrainingJob::from_json(&text).unwrap().to_json(), text);
        }
    }
}

fn jobs() -> Vec<Vec<u8>> {
    let bench = Bench::new(1, 1);
    let sparse = json!({"numWorkers": 2, "batchSize": 12});
    let full = json!({
        "numWorkers": 4, "batchSize": 6, "dataLanes": 8, "epochs": 3, "checkpointSteps": 4, "learningRate": 0.5,
        "lrSchedule": "cosine", "warmupEpochs": 0.5, "earlyStoppingPatience": 2, "validationFraction": 0.25,
    });
    [sparse, full]
        .map(|params| bench.job("attempt", params, true).to_json().into_bytes())
        .into()
}

#[test]
fn an_almost_right_checkpoint_is_gone_on_from_or_refused() {
    let bench = Bench::new(40, 8);
    let params = json!({
        "batchSize": 8, "epochs": 2, "checkpointSteps": 3, "checkpointInterval": -1, "validationFraction": 0.2,
        "gradientCompression": "topk",
    });
    train(&bench.job("first", params.clone(), false), 1, &config());
    let uri = bench.path("attempts/first/checkpoints/0000000006");
    let read = |name: &str| fs::read(uri.join(name)).unwrap();
    let marker = read("COMMITTED");
    let resumed = || {
        let mut job = bench.job("again", params.clone(), false);
        job.attempt.resume = Some(uri.to_str().unwrap().into());
        try_train(&job, 1, |_| config(), |_| Hooks::default())[0]
            .result
            .is_ok()
    };
    assert!(resumed());
    for name in ["COMMITTED", "state.json", "compression-0.bin"] {
        let good = read(name);
        let property = |bytes: Vec<u8>| -> Result<bool, TestCaseError> {
            fs::write(uri.join(name), &bytes).unwrap();
            if name != "COMMITTED" {
                // A part that somebody made has the hash that it should have.
                let mut marker: Value = serde_json::from_slice(&marker).unwrap();
                let parts = marker["parts"].as_array_mut().unwrap();
                let part = parts.iter_mut().find(|part| part["name"] == name).unwrap();
                let hash = Sha256::digest(&bytes);
                part["sha256"] = json!(
                    hash.iter()
                        .map(|byte| format!("{byte:02x}"))
                        .collect::<String>()
                );
                part["size"] = json!(bytes.len());
                fs::write(uri.join("COMMITTED"), marker.to_string()).unwrap();
            }
            Ok(resumed())
        };
        if name == "state.json" {
            let state: Value = serde_json::from_slice(&good).unwrap();
            let num_epochs = state["history"]["epochs"].as_array().unwrap().len() as u64;
            let edits: [(&str, u64); 3] = [
                ("/history/bestEpoch", num_epochs),
                ("/history/epochs/0/epoch", 7),
                ("/position/epoch", num_epochs + 1),
            ];
            for (place, number) in edits {
                let mut state = state.clone();
                *state.pointer_mut(place).unwrap() = number.into();
                assert!(
                    !property(state.to_string().into_bytes()).unwrap(),
                    "{place}"
                );
            }
        }
        let property = |bytes| property(bytes).map(|_| ());
        TestRunner::new(cases(60))
            .run(&mutated(vec![good.clone()]), property)
            .unwrap();
        fs::write(uri.join(name), good).unwrap();
        fs::write(uri.join("COMMITTED"), &marker).unwrap();
    }
    assert!(resumed());
    // Damaged, and its own predecessor.
    let mut circle: Value = serde_json::from_slice(&marker).unwrap();
    circle["before"] = json!({"attempt": "first", "step": 6});
    fs::write(uri.join("COMMITTED"), circle.to_string()).unwrap();
    fs::write(uri.join("state.json"), "{}").unwrap();
    assert!(!resumed());
}
