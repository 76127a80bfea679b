//! Scoring against PyTorch's outputs.

use flambeau_torch::{Judge, Scorer, ScorerSpec, Scores};
use serde_json::{Value, json};

use crate::support::{distance, expected, folder, numbers, paired, path, store};

fn spec(fields: Value) -> ScorerSpec {
    let mut spec = json!({"form": "scripted", "weights": null, "batchSize": 4, "classes": null, "fields": [],
        "numThreads": 1});
    spec.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

fn floats(values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|&x| (x as f32).to_ne_bytes())
        .collect()
}

fn doubles(scores: &Scores) -> &[f64] {
    match scores {
        Scores::F64(values) => values,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_classifiers_columns_are_those_of_torch() {
    let expected = expected("classifier");
    let scorer = Scorer::open(&spec(json!({
        "program": path("scale-3-float32.pt"),
        "inputs": [{"dtype": "float32", "shape": [3]}],
        "output": [{"name": null, "dtype": "float32", "shape": [3]}],
        "classes": "logits",
        "fields": ["prediction", "probability", "rawPrediction"],
    })))
    .unwrap();
    let rows = floats(&numbers(&expected["x"]));
    let score = || scorer.score(9, &[&rows]).unwrap();
    let columns = score();
    assert_eq!(doubles(&columns[0]), numbers(&expected["prediction"]));
    assert!(distance(doubles(&columns[1]), &numbers(&expected["probability"])) < 1e-7);
    assert!(distance(doubles(&columns[2]), &numbers(&expected["output"])) < 1e-7);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(score(), columns));
        }
    });
}

#[test]
fn several_outputs_keep_their_types() {
    let scorer = Scorer::open(&spec(json!({
        "program": path("several.pt"),
        "inputs": [{"dtype": "float32", "shape": [2]}, {"dtype": "float32", "shape": [2]}],
        "output": [
            {"name": "sum", "dtype": "float32", "shape": [2]},
            {"name": "is_larger", "dtype": "bool", "shape": [2]},
            {"name": "first", "dtype": "float32", "shape": []},
        ],
    })))
    .unwrap();
    let x: Vec<f64> = (0..10).map(f64::from).collect();
    let y: Vec<f64> = x.iter().map(|x| 9.0 - x).collect();
    let columns = scorer.score(5, &[&floats(&x), &floats(&y)]).unwrap();
    assert_eq!(columns[0], Scores::F32(vec![9.0; 10]));
    assert_eq!(columns[1], Scores::Bool((0..10).map(|i| i > 4).collect()));
    assert_eq!(columns[2], Scores::F64(vec![0.0, 2.0, 4.0, 6.0, 8.0]));
    let none = scorer.score(0, &[&[], &[]]).unwrap();
    assert_eq!(
        none,
        [
            Scores::F32(vec![]),
            Scores::Bool(vec![]),
            Scores::F64(vec![])
        ]
    );
    let error = scorer
        .score(5, &[&floats(&x), &floats(&y[..8])])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("[40, 32] bytes") && error.contains("[40, 40]"),
        "{error}"
    );
}

#[test]
fn rows_are_halved_where_memory_runs_out() {
    let open = |most| {
        Scorer::open(&spec(json!({
            "program": path(&format!("hungry-{most}.pt")),
            "inputs": [{"dtype": "float32", "shape": [3]}],
            "output": [{"name": null, "dtype": "float32", "shape": [3]}],
            "batchSize": 64,
        })))
        .unwrap()
    };
    let x: Vec<f64> = (0..300).map(f64::from).collect();
    let doubled = Scores::F32(x.iter().map(|&x| 2.0 * x as f32).collect());
    let scorer = open(5);
    // 64 rows, 32, 16, 8 and 4.
    for rows_before in [64, 4] {
        assert_eq!(scorer.rows_at_once(), rows_before);
        assert_eq!(
            scorer.score(100, &[&floats(&x)]).unwrap(),
            std::slice::from_ref(&doubled)
        );
        assert_eq!(scorer.rows_at_once(), 4);
    }
    let starved = open(0).score(100, &[&floats(&x)]).unwrap_err();
    assert!(
        starved.to_string().contains("DefaultCPUAllocator"),
        "{starved}"
    );
}

/// The program doubles its input, in pieces that memory has room for.
#[test]
fn sums_are_those_of_all_rows() {
    let tensor = json!({"dtype": "float32", "shape": [1]});
    let by = json!({"loss": {"name": "mse", "options": {}}, "metrics": ["mae", "rmse", "r2"]});
    let x: Vec<f64> = (0..40).map(|i| f64::from(i) / 4.0 - 3.0).collect();
    let labels: Vec<f64> = (0..40).map(|i| f64::from(i % 7)).collect();
    let weights: Vec<f64> = (0..40).map(|i| f64::from(i % 3)).collect();
    for is_weighted in [false, true] {
        let weight = is_weighted.then(|| json!({"dtype": "float32", "shape": []}));
        let scorer = Scorer::open(&spec(json!({
            "program": path("hungry-5.pt"),
            "inputs": [tensor],
            "output": [{"name": null, "dtype": "float32", "shape": [1]}],
            "batchSize": 64,
            "judged": {"labels": [tensor], "weight": weight, "by": by},
        })))
        .unwrap();
        let mut tensors = vec![floats(&x), floats(&labels)];
        tensors.extend(is_weighted.then(|| floats(&weights)));
        let tensors: Vec<&[u8]> = tensors.iter().map(Vec::as_slice).collect();
        let sums = scorer.sums(40, &tensors).unwrap();
        assert!(scorer.rows_at_once() <= 5);
        let judge = Judge::new(&serde_json::from_value(by.clone()).unwrap(), &store()).unwrap();
        let found = judge.finish(&sums);

        let mean = |of: &dyn Fn(usize) -> f64| {
            let weight = |row: usize| if is_weighted { weights[row] } else { 1.0 };
            let total: f64 = (0..40).map(weight).sum();
            (0..40).map(|row| weight(row) * of(row)).sum::<f64>() / total
        };
        let error = |row: usize| 2.0 * x[row] - labels[row];
        let mse = mean(&|row| error(row).powi(2));
        let average = mean(&|row| labels[row]);
        let wanted = [
            ("loss", mse),
            ("mae", mean(&|row| error(row).abs())),
            ("rmse", mse.sqrt()),
            (
                "r2",
                1.0 - mse / mean(&|row| (labels[row] - average).powi(2)),
            ),
        ];
        for ((name, value), (wanted_name, wanted)) in paired(&found, &wanted) {
            assert_eq!(name, wanted_name);
            assert!(
                (value - wanted).abs() < 1e-6 * wanted.abs(),
                "{name}: {value}, not {wanted}"
            );
        }
    }
    let plain = Scorer::open(&spec(json!({
        "program": path("hungry-5.pt"),
        "inputs": [tensor],
        "output": [{"name": null, "dtype": "float32", "shape": [1]}],
    })));
    let error = plain.unwrap().sums(0, &[]).unwrap_err();
    assert!(error.to_string().contains("without a loss"), "{error}");
}

#[test]
fn outputs_without_memory_are_an_error() {
    let scorer = Scorer::open(&spec(json!({
        "program": path("elsewhere.pt"),
        "inputs": [{"dtype": "float32", "shape": [3]}],
        "output": [{"name": null, "dtype": "float32", "shape": [3]}],
    })))
    .unwrap();
    let error = scorer.score(2, &[&floats(&[1.0; 6])]).unwrap_err();
    assert!(error.to_string().contains("meta"), "{error}");
}

/// A traced module holds a tensor, and the device that its source asked for, as constants.
#[test]
fn a_gpu_scores_what_the_cpu_does() {
    folder();
    let spec = |gpu: Option<usize>| {
        spec(json!({
            "program": path("traced.pt"),
            "inputs": [{"dtype": "float32", "shape": [3]}],
            "output": [{"name": null, "dtype": "float32", "shape": [3]}],
            "gpu": gpu,
        }))
    };
    let x: Vec<f64> = (0..21).map(|i| f64::from(i) * 0.125 - 1.0).collect();
    let score = |scorer: &Scorer| match scorer.score(7, &[&floats(&x)]).unwrap().remove(0) {
        Scores::F32(values) => values.into_iter().map(f64::from).collect::<Vec<f64>>(),
        other => panic!("{other:?}"),
    };
    let on_cpu = score(&Scorer::open(&spec(None)).unwrap());
    assert!(distance(&on_cpu, &numbers(&expected("traced"))) < 1e-6);
    match flambeau_torch::check_cuda() {
        Ok(()) => {
            let scorer = Scorer::open(&spec(Some(0))).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| assert!(distance(&score(&scorer), &on_cpu) < 1e-6));
                }
            });
        }
        Err(reason) => {
            let error = Scorer::open(&spec(Some(0))).err().unwrap();
            assert_eq!(error.to_string(), reason);
            println!("SKIPPED on a GPU: {reason}");
        }
    }
}

/// That of the program, on whatever thread it scores.
#[test]
fn a_program_finds_its_gpu_the_present_one() {
    folder();
    let gpus = flambeau_torch::check_cuda().map_or(0, |()| tch::Cuda::device_count() as usize);
    if gpus < 2 {
        println!("SKIPPED on a second GPU: there is none");
    }
    for gpu in std::iter::once(None).chain((0..gpus).map(Some)) {
        let scorer = Scorer::open(&spec(json!({
            "program": path("on-the-present-gpu.pt"),
            "inputs": [{"dtype": "float32", "shape": [3]}],
            "output": [{"name": null, "dtype": "float32", "shape": [3]}],
            "gpu": gpu,
        })))
        .unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let columns = scorer.score(5, &[&floats(&[1.0; 15])]).unwrap();
                let expected = 1.0 + gpu.unwrap_or(0) as f32;
                assert_eq!(columns, [Scores::F32(vec![expected; 15])]);
            });
        });
    }
}

#[test]
fn another_output_than_the_trained_one_is_refused() {
    let scorer = Scorer::open(&spec(json!({
        "program": path("scale-3-float32.pt"),
        "inputs": [{"dtype": "float32", "shape": [3]}],
        "output": [{"name": "_1", "dtype": "float32", "shape": [3]}],
    })))
    .unwrap();
    let error = scorer
        .score(2, &[&floats(&[0.0; 6])])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("a tensor of [2, 3] for a batch of 2 rows, where _1 of [2, 3]"),
        "{error}"
    );
}
