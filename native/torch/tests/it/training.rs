//! Trainings of a module with batch normalization, dropout, ties and buffers against an eager loop.

use std::path::Path;

use flambeau_data::Batch;
use flambeau_train::{BucketSizes, Model, Tensors, TrainingJob};
use serde_json::{Value, json};

use crate::support::{
    Place, Trainer, alone, batch, dtype, expected, job, numbers, oracle, paired, path, places,
    tensor,
};

const ROWS: usize = 16;

fn job_of(case: &Value) -> TrainingJob {
    let dtype = dtype(&case["dtype"]);
    let fields = json!({
        "loss": {"name": "mse"},
        "optimizer": {"name": case["name"], "options": case["options"]},
        "metrics": ["mae"],
    });
    let mut job = job(&path(&format!("net-{dtype}.pt")), dtype, 6, 2, fields);
    job.params.precision = serde_json::from_value(case["precision"].clone()).unwrap();
    job
}

fn batches(case: &Value) -> Vec<Batch> {
    let dtype = dtype(&case["dtype"]);
    let (x, y) = (numbers(&case["x"]), numbers(&case["y"]));
    let rows = x.chunks_exact(ROWS * 6).zip(y.chunks_exact(ROWS * 2));
    rows.map(|(x, y)| {
        batch(
            ROWS,
            tensor(dtype, &[ROWS, 6], x),
            tensor(dtype, &[ROWS, 2], y),
            None,
        )
    })
    .collect()
}

/// Every tensor bit for bit.
fn check_state(trainer: &mut Trainer, case: &Value) {
    let found = trainer.tensors();
    for (name, wanted) in case["state"].as_object().unwrap() {
        if name == "third.weight" {
            assert!(!found.contains_key(name), "a tied tensor is listed once");
            continue;
        }
        assert_eq!(
            found[name],
            numbers(wanted),
            "{name} after {} in {}",
            case["name"],
            case["dtype"]
        );
    }
    assert_eq!(found["shift"], [0.25; 8]);
}

fn train_whole(place: Place, case: &Value, sizes: BucketSizes) -> Trainer {
    let mut trainer = Trainer::at(place, &job_of(case), sizes);
    trainer.model.seed(11, 0, 0).unwrap();
    let (batches, losses) = (batches(case), numbers(&case["losses"]));
    assert_eq!(batches.len(), losses.len());
    for (batch, loss) in batches.into_iter().zip(losses) {
        let sums = trainer.step(batch);
        assert_eq!(sums.numerator / sums.denominator, loss);
    }
    trainer
}

#[test]
fn an_eager_loop_gives_the_same_bits() {
    let _alone = alone();
    let small = BucketSizes {
        first: 64,
        others: 256,
    };
    for case in expected("training").as_array().unwrap() {
        for place in [Place::Cpu, Place::Staged] {
            let mut one = train_whole(place, case, BucketSizes::default());
            assert_eq!(one.num_buckets(), 1);
            check_state(&mut one, case);
            let mut several = train_whole(place, case, small);
            assert!(several.num_buckets() > 3);
            check_state(&mut several, case);
        }
    }
}

#[test]
fn a_checkpoint_goes_on_to_the_same_bits() {
    let _alone = alone();
    for case in expected("training").as_array().unwrap() {
        let mut all = batches(case);
        let rest = all.split_off(3);
        let mut first = Trainer::new(&job_of(case));
        first.model.seed(11, 0, 0).unwrap();
        for batch in all {
            first.step(batch);
        }
        let (state, rank_state) = (
            first.model.save_state().unwrap(),
            first.model.save_rank_state().unwrap(),
        );
        drop(first);
        let mut second = Trainer::new(&job_of(case));
        second.model.seed(99, 0, 0).unwrap();
        second.model.load_state(&state).unwrap();
        second.model.load_rank_state(&rank_state).unwrap();
        for batch in rest {
            second.step(batch);
        }
        check_state(&mut second, case);
    }
}

#[test]
fn a_checkpoint_knows_the_learning_rate_of_the_last_step() {
    let cases = expected("training");
    let case = &cases[0];
    let mut first = Trainer::new(&job_of(case));
    let batch = batches(case).remove(0);
    let num_rows = batch.num_rows;
    first.micro(batch, 0, true, num_rows);
    let rate = case["options"]["lr"].as_f64().unwrap();
    assert_eq!(first.model.learning_rate().unwrap(), Some(rate));
    first.finish(0.25);
    let state = first.model.save_state().unwrap();
    let mut second = Trainer::new(&job_of(case));
    second.model.load_state(&state).unwrap();
    assert_eq!(second.model.learning_rate().unwrap(), Some(0.25 * rate));
}

/// Dropout, and so the random generators, included. A GPU draws other numbers than the CPU, but goes on with its own.
#[test]
fn a_checkpoint_of_a_device_goes_on_there_to_the_same_bits() {
    let _alone = alone();
    let cases = expected("training");
    for (place, case) in all_at_devices(&cases) {
        let mut all = batches(case);
        let mut whole = Trainer::at(place, &job_of(case), BucketSizes::default());
        whole.model.seed(11, 0, 0).unwrap();
        let mut first = Trainer::at(place, &job_of(case), BucketSizes::default());
        for batch in batches(case) {
            whole.step(batch);
        }
        first.model.seed(11, 0, 0).unwrap();
        let rest = all.split_off(3);
        for batch in all {
            first.step(batch);
        }
        let (state, rank_state) = (
            first.model.save_state().unwrap(),
            first.model.save_rank_state().unwrap(),
        );
        drop(first);
        let mut second = Trainer::at(place, &job_of(case), BucketSizes::default());
        second.model.seed(99, 0, 0).unwrap();
        second.model.load_state(&state).unwrap();
        second.model.load_rank_state(&rank_state).unwrap();
        for batch in rest {
            second.step(batch);
        }
        assert_eq!(
            second.tensors(),
            whole.tensors(),
            "{} ({place:?})",
            case["name"]
        );
    }
}

fn all_at_devices(cases: &Value) -> impl Iterator<Item = (Place, &Value)> {
    let devices = places().into_iter().filter(|place| *place != Place::Cpu);
    devices.flat_map(|place| {
        cases
            .as_array()
            .unwrap()
            .iter()
            .map(move |case| (place, case))
    })
}

#[test]
fn tensors_of_a_device_are_copies_that_it_takes_back() {
    let cases = expected("training");
    for (place, case) in all_at_devices(&cases).take(2) {
        let mut trainer = Trainer::at(place, &job_of(case), BucketSizes::default());
        let before = trainer.tensors();
        let buffers = trainer.model.tensors(Tensors::Buffers).unwrap();
        assert!(!buffers.is_empty() && buffers.len() < before.len());
        for tensor in &buffers {
            // SAFETY: the copy has that many bytes, and is not used otherwise.
            unsafe {
                tensor
                    .ptr
                    .cast::<u8>()
                    .write_bytes(0, tensor.numel * tensor.dtype.size())
            };
        }
        trainer.model.take_tensors().unwrap();
        for (name, values) in trainer.tensors() {
            let is_buffer = buffers.iter().any(|buffer| buffer.name == name);
            let wanted = if is_buffer {
                vec![0.0; values.len()]
            } else {
                before[&name].clone()
            };
            assert_eq!(values, wanted, "{name} ({place:?})");
        }
    }
}

#[test]
fn a_state_of_another_training_is_refused() {
    let cases = expected("training");
    let (adam, sgd) = (&cases[0], &cases[1]);
    let state = Trainer::new(&job_of(adam)).model.save_state().unwrap();
    let error = Trainer::new(&job_of(sgd))
        .model
        .load_state(&state)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("optimizer \"adam\"") && error.contains("\"sgd\""),
        "{error}"
    );
    let error = Trainer::new(&job_of(adam))
        .model
        .load_state(&state[..50])
        .unwrap_err()
        .to_string();
    assert!(error.contains("not a whole safetensors file"), "{error}");
}

#[test]
fn micro_batches_accumulate_to_the_gradient_of_all_rows() {
    let case = &expected("losses")[0];
    let (rows, width) = (7, 3);
    let dtype = flambeau_data::DType::Float64;
    let fields =
        json!({"loss": {"name": "mse"}, "optimizer": {"name": "sgd", "options": {"lr": 0.1}}});
    let job = job(&path("scale-3-float64.pt"), dtype, width, width, fields);
    let (x, y) = (numbers(&case["x"]), numbers(&case["label"]));
    let part = |from: usize, to: usize| {
        let count = to - from;
        batch(
            count,
            tensor(dtype, &[count, width], &x[from * width..to * width]),
            tensor(dtype, &[count, width], &y[from * width..to * width]),
            None,
        )
    };
    let small = BucketSizes {
        first: 1,
        others: 1,
    };
    for (place, sizes) in places()
        .into_iter()
        .flat_map(|place| [(place, BucketSizes::default()), (place, small)])
    {
        let mut whole = Trainer::at(place, &job, sizes);
        whole.step(part(0, rows));
        let mut parts = Trainer::at(place, &job, sizes);
        parts.micro(part(0, 3), 0, false, rows);
        parts.micro(part(3, 5), 1, false, rows);
        parts.micro(part(5, 7), 2, true, rows);
        parts.finish(1.0);
        let (whole, parts) = (&whole.tensors()["scale"], &parts.tensors()["scale"]);
        for (a, b) in paired(whole, parts) {
            assert!((a - b).abs() < 1e-15, "{whole:?} {parts:?} ({place:?})");
        }
    }
}

#[test]
fn what_is_written_is_pytorchs() {
    let _alone = alone();
    for case in expected("training").as_array().unwrap() {
        for place in [Place::Cpu, Place::Staged] {
            let mut trainer = train_whole(place, case, BucketSizes::default());
            let folder = tempfile::tempdir().unwrap();
            let names = trainer.model.write_weights(folder.path()).unwrap();
            assert_eq!(names, ["weights.safetensors", "program.pt"]);
            let read = read_by_python(folder.path(), case);
            assert_eq!(numbers(&read["output"]), numbers(&case["output"]));
            assert_eq!(read["aliases"], json!({"third.weight": "second.weight"}));
            // The buffer outside of state_dict keeps its data in the program.
            assert_eq!(read["not_hollow"], json!(["shift"]));
            check_state(&mut trainer, case);
            goes_on_from(folder.path(), case);
        }
    }
}

fn read_by_python(folder: &Path, case: &Value) -> Value {
    let inputs = folder.join("inputs.json");
    let x = &numbers(&case["x"])[..ROWS * 6];
    let given = json!({"x": x, "shape": [ROWS, 6], "dtype": case["dtype"]});
    std::fs::write(&inputs, given.to_string()).unwrap();
    let output = oracle()
        .arg("read")
        .arg(folder)
        .arg(&inputs)
        .output()
        .expect("Python starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A hollow program trains on from a weights file, and from no other.
fn goes_on_from(folder: &Path, case: &Value) {
    let weights = folder.join("weights.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    let mut job = job_of(case);
    let program = job.program.as_mut().unwrap();
    program.eval = folder.join("program.pt").to_str().unwrap().into();
    let error = flambeau_torch::build(&job, &crate::support::store())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("no weights in it"), "{error}");
    let program = job.program.as_mut().unwrap();
    let mut stored = flambeau_train::StoredWeights {
        uri: weights.to_str().unwrap().into(),
        size: bytes.len() as u64,
        sha256: sha256(&bytes),
    };
    program.weights = Some(stored.clone());
    check_state(&mut Trainer::new(&job), case);
    stored.sha256 = "0".repeat(64);
    job.program.as_mut().unwrap().weights = Some(stored);
    let error = flambeau_torch::build(&job, &crate::support::store())
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("is not the weights file of this job"),
        "{error}"
    );
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
