//! Trainings on devices, which the host plays, with a stand-in for NCCL: the same as on the CPU.

use std::sync::Arc;

use flambeau_collective::DType;
use flambeau_train::{ErrorKind, Gpus, Hooks, Traffic, TrainingJob};
use serde_json::{Value, json};

use crate::host_device::{HostDevices, own_gpu};
use crate::model::{Config, Fault, Net, Optimizer};
use crate::support::{Bench, Outcome, paired, try_train_on};

const ADAM: Optimizer = Optimizer::Adam { rate: 0.01 };

fn config(hidden: usize) -> Config {
    Config {
        gate: Some(0.9),
        noise: true,
        cuda_obstacle: None,
        ..Config::new(Net::Mlp { hidden }, ADAM)
    }
}

fn params(world_size: usize, device: &str) -> Value {
    json!({
        "numWorkers": world_size, "batchSize": 12 / world_size, "dataLanes": 4, "epochs": 3, "device": device,
        "gradientAccumulationSteps": 2, "gradientClipNorm": 0.5, "verifyReplicas": true,
    })
}

/// Trains where each rank has a GPU of its own.
fn run(job: &TrainingJob, world_size: usize, config: &Config) -> Vec<Outcome> {
    try_train_on(
        job,
        world_size,
        |_| config.clone(),
        |_| Hooks::default(),
        own_gpu,
    )
}

fn succeed(outcomes: &[Outcome]) {
    for outcome in outcomes {
        if let Err(error) = &outcome.result {
            panic!("{error}");
        }
    }
}

fn assert_close(device: f64, cpu: f64) {
    let allowed = 1e-12 * cpu.abs().max(1.0);
    assert!((device - cpu).abs() <= allowed, "{device} instead of {cpu}");
}

/// That two trainings ended alike, but for the order of additions.
fn assert_alike(on_device: &[Outcome], on_cpu: &[Outcome]) {
    succeed(on_device);
    succeed(on_cpu);
    for (device, cpu) in paired(on_device, on_cpu) {
        assert_eq!(
            device.model.bits(),
            on_device[0].model.bits(),
            "replicas differ"
        );
        assert_eq!(device.model.seen, cpu.model.seen);
        for (&device, &cpu) in paired(&device.model.values.concat(), &cpu.model.values.concat()) {
            assert_close(device, cpu);
        }
        let losses = |outcome: &Outcome| -> Vec<f64> {
            let reports = &outcome.reports;
            reports
                .iter()
                .map(|report| report.loss.unwrap_or(0.0))
                .collect()
        };
        for (&device, &cpu) in paired(&losses(device), &losses(cpu)) {
            assert_close(device, cpu);
        }
        let validation = |outcome: &Outcome| {
            let epochs = &outcome.result.as_ref().unwrap().history.epochs;
            epochs
                .iter()
                .map(|epoch| epoch.validation_loss.unwrap())
                .collect::<Vec<_>>()
        };
        for (&device, &cpu) in paired(&validation(device), &validation(cpu)) {
            assert_close(device, cpu);
        }
    }
}

#[test]
fn a_device_trains_as_the_cpu_does() {
    let bench = Bench::new(97, 31);
    for (world_size, precision) in [(1, "float32"), (2, "float32"), (3, "float32"), (2, "fp16")] {
        // Where gradients overflow, the first steps of fp16 are skipped.
        let config = Config {
            limit: 5000.0,
            ..config(5)
        };
        let train = |device: &str| {
            let mut params = params(world_size, device);
            params["precision"] = json!(precision);
            let job = bench.job(&format!("{device}-{precision}-{world_size}"), params, true);
            run(&job, world_size, &config)
        };
        let (on_device, on_cpu) = (train("cuda"), train("cpu"));
        assert_alike(&on_device, &on_cpu);
        assert!(on_device[0].model.is_on_device() && !on_cpu[0].model.is_on_device());
        let norms = |outcomes: &[Outcome]| {
            let reports = outcomes[0].reports.iter();
            reports
                .filter(|report| report.gradient_norm.is_some())
                .count()
        };
        assert_eq!(norms(&on_device), 0, "a device is not waited for");
        let epochs = &on_device[0].result.as_ref().unwrap().history.epochs;
        assert!(epochs.iter().all(|epoch| epoch.gradient_norm.is_none()));
        assert!(norms(&on_cpu) > 0);
        let scaling = |outcomes: &[Outcome]| {
            let epochs = &outcomes[0].result.as_ref().unwrap().history.epochs;
            epochs.iter().map(|epoch| epoch.scaling).collect::<Vec<_>>()
        };
        assert_eq!(scaling(&on_device), scaling(&on_cpu));
    }
}

/// Layers beyond the size of the first bucket, so that there are several, which are laid out anew.
#[test]
fn several_buckets_travel_while_backward_goes_on() {
    let bench = Bench::new(25, 5);
    let config = Config {
        is_forward: true,
        ..config(70_000)
    };
    let train = |device: &str| {
        let job = bench.job(&format!("wide-{device}"), params(2, device), false);
        run(&job, 2, &config)
    };
    let (on_device, on_cpu) = (train("auto"), train("cpu"));
    assert_alike(&on_device, &on_cpu);
    assert_eq!(
        on_device[0].model.num_attached,
        on_cpu[0].model.num_attached
    );
    assert_eq!(on_device[0].model.num_attached, 2);
}

#[test]
fn a_training_on_devices_goes_on_from_a_checkpoint() {
    let bench = Bench::new(97, 31);
    let mut params = params(2, "cuda");
    params["checkpointSteps"] = json!(2);
    let config = config(5);
    let unbroken = run(&bench.job("unbroken", params.clone(), false), 2, &config);
    let broken = Config {
        fault: Some(Fault::Error { step: 5 }),
        ..config.clone()
    };
    let outcomes = run(&bench.job("broken", params.clone(), false), 2, &broken);
    assert!(outcomes.iter().all(|outcome| outcome.result.is_err()));
    let mut job = bench.job("resumed", params, false);
    let work = bench.directory.path().to_str().unwrap();
    let store = crate::support::store();
    let newest = flambeau_train::checkpoint::newest(&store, work, &["broken".to_string()]);
    job.attempt.resume = Some(newest.unwrap().unwrap().uri);
    let resumed = run(&job, 2, &config);
    succeed(&resumed);
    for (resumed, unbroken) in paired(&resumed, &unbroken) {
        assert_eq!(resumed.model.bits(), unbroken.model.bits());
    }
}

#[test]
fn a_rank_that_fails_on_its_device_ends_all() {
    let bench = Bench::new(97, 0);
    let job = bench.job("fault", params(3, "cuda"), false);
    let faulty = |rank: usize| Config {
        fault: (rank == 1).then_some(Fault::Error { step: 2 }),
        ..config(5)
    };
    let outcomes = try_train_on(&job, 3, faulty, |_| Hooks::default(), own_gpu);
    for (rank, outcome) in outcomes.iter().enumerate() {
        let error = outcome.result.as_ref().unwrap_err();
        assert_eq!(error.is_cause(), rank == 1, "{error}");
        assert!(error.to_string().contains("fault at step 2"), "{error}");
    }
}

#[test]
fn a_device_that_cannot_compress_ends_all() {
    let bench = Bench::new(97, 0);
    for compression in COMPRESSIONS {
        // In the first step, or a later one.
        for most in [0, 7] {
            let job = bench.job("fault", compressed(3, "cuda", compression), false);
            let faulty = |rank: usize| Config {
                fault: (rank == 1).then_some(Fault::Narrow { most }),
                ..compressible(20)
            };
            let outcomes = try_train_on(&job, 3, faulty, |_| Hooks::default(), own_gpu);
            for (rank, outcome) in outcomes.iter().enumerate() {
                let error = outcome.result.as_ref().unwrap_err();
                assert_eq!(error.is_cause(), rank == 1, "{error}");
                let text = error.to_string();
                assert!(text.contains("the device's memory is full"), "{text}");
                if rank == 1 {
                    assert_eq!(error.kind(), ErrorKind::Model, "{text}");
                }
            }
        }
    }
}

/// GPUs of these UUIDs for each rank.
fn gpus_of(uuids: Result<&[&str], &str>) -> Gpus {
    let uuids = uuids.map(|uuids| uuids.iter().map(|uuid| (*uuid).to_string()).collect());
    Gpus {
        assigned: None,
        devices: Arc::new(HostDevices(uuids.map_err(str::to_string))),
    }
}

fn refusal(outcomes: &[Outcome]) -> String {
    let errors: Vec<String> = outcomes
        .iter()
        .map(|outcome| {
            let error = outcome.result.as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Job, "{error}");
            error.cause.to_string()
        })
        .collect();
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    errors[0].clone()
}

#[test]
fn what_the_ranks_lack_is_one_error_on_all_of_them() {
    let bench = Bench::new(25, 0);
    let train = |device: &str, gpus: &(dyn Fn(usize) -> Gpus + Sync)| {
        let job = bench.job("lacking", params(2, device), false);
        try_train_on(&job, 2, |_| config(5), |_| Hooks::default(), gpus)
    };
    let none = |_| gpus_of(Err("no NVIDIA driver is installed"));
    let error = refusal(&train("cuda", &none));
    assert!(
        error.starts_with("device is cuda, but must be cpu or auto:"),
        "{error}"
    );
    assert!(
        error.contains("worker 1 on ") && error.contains("no NVIDIA driver"),
        "{error}"
    );
    succeed(&train("auto", &none));
    let mixed = |rank| {
        if rank == 0 {
            gpus_of(Ok(&["a"]))
        } else {
            none(rank)
        }
    };
    for device in ["auto", "cuda"] {
        let error = refusal(&train(device, &mixed));
        assert!(
            error.contains("must be cpu: not every worker can use a GPU"),
            "{error}"
        );
        let error = refusal(&train(device, &|_| gpus_of(Ok(&["a"]))));
        assert!(
            error.contains("numWorkers no more than there are GPUs"),
            "{error}"
        );
    }
    succeed(&train("cpu", &mixed));
}

#[test]
fn idle_gpus_are_told_of() {
    let bench = Bench::new(25, 0);
    let job = bench.job("idle", params(2, "auto"), false);
    let unable = Config {
        cuda_obstacle: Some("torch is built without CUDA".into()),
        ..config(5)
    };
    let outcomes = run(&job, 2, &unable);
    succeed(&outcomes);
    let warnings = |rank: usize| outcomes[rank].result.as_ref().unwrap().warnings.clone();
    let expected =
        "the workers train on the CPU, although there are GPUs: torch is built without CUDA";
    assert_eq!(warnings(0), [expected]);
    assert!(warnings(1).is_empty());
}

/// A model of float32 gradients, of which one parameter is a matrix.
fn compressible(hidden: usize) -> Config {
    Config {
        gradients: DType::Float32,
        num_rows: 8,
        ..config(hidden)
    }
}

/// What is not clipped or weighed, which a device does in other digits.
fn compressed(world_size: usize, device: &str, compression: &str) -> Value {
    let mut params = params(world_size, device);
    params["gradientCompression"] = json!(compression);
    params["gradientClipNorm"] = json!(null);
    params
}

const COMPRESSIONS: [&str; 2] = ["fp16", "bf16"];

/// That compressed trainings ended alike, to the last bit.
fn assert_compressed_alike(on_device: &[Outcome], on_cpu: &[Outcome], compression: &str) {
    succeed(on_device);
    succeed(on_cpu);
    for (device, cpu) in paired(on_device, on_cpu) {
        assert_eq!(
            device.model.bits(),
            on_device[0].model.bits(),
            "replicas differ"
        );
        assert_eq!(device.model.bits(), cpu.model.bits(), "{compression}");
        let traffic = |outcome: &Outcome| -> Vec<Traffic> {
            let epochs = &outcome.result.as_ref().unwrap().history.epochs;
            epochs.iter().map(|epoch| epoch.traffic).collect()
        };
        assert_eq!(traffic(device), traffic(cpu));
        let last = *traffic(device).last().unwrap();
        assert!(last.sent_bytes < last.uncompressed_bytes, "{last:?}");
    }
}

#[test]
fn gradients_are_compressed_on_devices_as_on_the_cpu() {
    let bench = Bench::new(97, 31);
    for compression in COMPRESSIONS {
        for world_size in [2, 3] {
            let train = |device: &str| {
                let name = format!("{compression}-{device}-{world_size}");
                let job = bench.job(&name, compressed(world_size, device, compression), false);
                run(&job, world_size, &compressible(20))
            };
            let (on_device, on_cpu) = (train("cuda"), train("cpu"));
            assert!(on_device[0].model.is_on_device());
            assert_compressed_alike(&on_device, &on_cpu, compression);
        }
    }
}

/// The first bucket is full, and its compression asked for, while backward goes on.
#[test]
fn several_buckets_are_compressed_on_devices() {
    let bench = Bench::new(25, 5);
    let config = Config {
        is_forward: true,
        ..compressible(140_000)
    };
    for compression in COMPRESSIONS {
        let train = |device: &str| {
            let name = format!("wide-{compression}-{device}");
            let params = compressed(2, device, compression);
            run(&bench.job(&name, params, false), 2, &config)
        };
        let (on_device, on_cpu) = (train("cuda"), train("cpu"));
        assert_eq!(on_device[0].model.num_attached, 2);
        assert_compressed_alike(&on_device, &on_cpu, compression);
    }
}

#[test]
fn what_is_compressed_on_the_cpu_alone_is_refused_by_name() {
    let bench = Bench::new(97, 0);
    for compression in ["topk", "powersgd"] {
        let job = bench.job("refused", compressed(2, "cuda", compression), false);
        let outcomes = run(&job, 2, &compressible(20));
        let expected = format!(
            "gradientCompression is {compression}, but must be none, fp16 or bf16 on a GPU; or device cpu"
        );
        assert!(
            refusal(&outcomes).contains(&expected),
            "{}",
            refusal(&outcomes)
        );
    }
}

#[test]
fn what_a_device_has_no_code_for_is_refused_by_name() {
    let bench = Bench::new(97, 0);
    for (name, value) in [("gradientClipValue", json!(0.5)), ("emaDecay", json!(0.9))] {
        let mut params = compressed(2, "cuda", "none");
        params[name] = value.clone();
        let outcomes = run(&bench.job("refused", params, false), 2, &config(20));
        let expected = format!("{name} is {value}, but must be left unset on a GPU; or device cpu");
        let refusal = refusal(&outcomes);
        assert!(refusal.contains(&expected), "{refusal}");
    }
}

#[test]
fn gradients_of_float64_travel_as_they_are_between_devices() {
    let bench = Bench::new(97, 31);
    let train = |compression: &str| {
        let job = bench.job(compression, compressed(2, "cuda", compression), false);
        run(&job, 2, &config(20))
    };
    let whole = train("none");
    for compression in COMPRESSIONS {
        let outcomes = train(compression);
        succeed(&outcomes);
        assert_eq!(outcomes[0].model.bits(), whole[0].model.bits());
    }
}
