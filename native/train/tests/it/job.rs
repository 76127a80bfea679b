//! What a job may say.

use std::collections::HashMap;
use std::path::Path;

use flambeau_data::Store;
use flambeau_train::{JobError, MetricNames, TrainingJob};
use serde_json::{Value, json};

fn job(params: Value) -> Value {
    json!({
        "format": 1,
        "params": params,
        "data": {
            "train": ["/data/part-0.parquet"],
            "spec": {"inputs": [{"name": "x", "columns": ["x"], "dtype": "float32"}]},
        },
        "attempt": {"id": "a1", "workDir": "/work"},
    })
}

fn read(job: &Value) -> Result<TrainingJob, JobError> {
    TrainingJob::from_json(&job.to_string())
}

#[test]
fn a_job_without_params_has_the_defaults_and_survives_a_round_trip() {
    let job = read(&job(json!({}))).unwrap();
    assert_eq!(
        (
            job.params.batch_size,
            job.params.epochs,
            job.params.num_workers
        ),
        (32, 1, 1)
    );
    assert_eq!(job.params.features_col, "features");
    let again = TrainingJob::from_json(&job.to_json()).unwrap();
    assert_eq!(again.params, job.params);
}

#[test]
fn a_job_as_logs_show_it_has_no_credentials() {
    let mut job = job(json!({}));
    job["store"] = json!({"aws_secret_access_key": "hush"});
    let job = read(&job).unwrap();
    assert_eq!(job.store["aws_secret_access_key"], "hush");
    let shown = format!("{job:?}");
    assert!(
        shown.contains("aws_secret_access_key") && !shown.contains("hush"),
        "{shown}"
    );
}

#[test]
fn a_value_out_of_bounds_or_of_another_type_names_param_value_and_what_is_allowed() {
    let refused = [
        (
            "numWorkers",
            json!(0),
            "numWorkers is 0, but must be an integer, at least 1 and at most 4096",
        ),
        ("numWorkers", json!(1.5), "numWorkers is 1.5"),
        ("numWorkers", json!("2"), "numWorkers is \"2\""),
        (
            "dataLanes",
            json!(0),
            "dataLanes is 0, but must be an integer or null, at least 1",
        ),
        ("batchSize", json!(0), "batchSize is 0"),
        ("batchSize", json!(-1), "batchSize is -1"),
        (
            "dropLast",
            json!(1),
            "dropLast is 1, but must be true or false",
        ),
        ("epochs", json!(0), "epochs is 0"),
        ("seed", json!("x"), "seed is \"x\", but must be an integer"),
        ("shuffle", json!(null), "shuffle is null"),
        ("shuffleWindow", json!(0), "shuffleWindow is 0"),
        (
            "learningRate",
            json!(-0.1),
            "learningRate is -0.1, but must be a number or null, at least 0",
        ),
        (
            "warmupEpochs",
            json!(1.5),
            "warmupEpochs is 1.5, but must be at most epochs (1)",
        ),
        (
            "lrSchedule",
            json!("one cycle"),
            "lrSchedule is \"one cycle\", but must be one of constant, linear, cosine, step, exponential, onecycle, plateau",
        ),
        ("lrEndFactor", json!(1.5), "lrEndFactor is 1.5"),
        (
            "lrDecayRate",
            json!(0),
            "lrDecayRate is 0, but must be a number, greater than 0.0 and at most 1.0",
        ),
        ("lrDecayEpochs", json!(0), "lrDecayEpochs is 0"),
        (
            "oneCycleDivFactor",
            json!(0.5),
            "oneCycleDivFactor is 0.5, but must be a number, at least 1.0",
        ),
        ("plateauPatience", json!(-1), "plateauPatience is -1"),
        (
            "emaDecay",
            json!(1),
            "emaDecay is 1, but must be a number or null, at least 0.0 and less than 1.0",
        ),
        ("bucketSize", json!(0), "bucketSize is 0"),
        (
            "monitorMode",
            json!("best"),
            "monitorMode is \"best\", but must be one of auto, min, max",
        ),
        ("minDelta", json!(-1), "minDelta is -1"),
        (
            "earlyStoppingPatience",
            json!(0),
            "earlyStoppingPatience is 0",
        ),
        (
            "gradientAccumulationSteps",
            json!(0),
            "gradientAccumulationSteps is 0",
        ),
        (
            "gradientClipNorm",
            json!(0),
            "gradientClipNorm is 0, but must be a number or null, greater than 0",
        ),
        (
            "gradientClipValue",
            json!(0),
            "gradientClipValue is 0, but must be a number or null, greater than 0",
        ),
        (
            "checkpointInterval",
            json!(0),
            "checkpointInterval is 0, but must be -1, or at least 1",
        ),
        ("checkpointInterval", json!(-2), "checkpointInterval is -2"),
        ("checkpointSteps", json!(0), "checkpointSteps is 0"),
        ("maxRestarts", json!(-1), "maxRestarts is -1"),
        (
            "collectiveTimeout",
            json!(0),
            "collectiveTimeout is 0, but must be a number, greater than 0",
        ),
        (
            "heartbeatTimeout",
            json!(0.9),
            "heartbeatTimeout is 0.9, but must be a number, at least 1.0 and at most",
        ),
        ("slotTimeout", json!(-1), "slotTimeout is -1"),
        ("inferenceBatchSize", json!(0), "inferenceBatchSize is 0"),
        ("inferenceBatchBytes", json!(0), "inferenceBatchBytes is 0"),
        (
            "verbose",
            json!(3),
            "verbose is 3, but must be an integer, at least 0 and at most 2",
        ),
        (
            "gradientCompression",
            json!("fp8"),
            "gradientCompression is \"fp8\", but must be one of none, fp16, bf16, powersgd, topk",
        ),
        (
            "powerSgdRank",
            json!(0),
            "powerSgdRank is 0, but must be an integer, at least 1 and at most 1024",
        ),
        ("powerSgdStartStep", json!(-1), "powerSgdStartStep is -1"),
        (
            "topKRatio",
            json!(0),
            "topKRatio is 0, but must be a number, greater than 0.0 and at most 1.0",
        ),
        ("topKRatio", json!(1.5), "topKRatio is 1.5"),
        (
            "precision",
            json!("float16"),
            "precision is \"float16\", but must be one of float32, tf32, bf16, fp16",
        ),
        ("verifyReplicas", json!("no"), "verifyReplicas is \"no\""),
        ("numThreads", json!(0), "numThreads is 0"),
        ("memoryBudget", json!(1), "memoryBudget is 1"),
        (
            "validationFraction",
            json!(1.0),
            "validationFraction is 1.0, but must be a number, at least 0",
        ),
        (
            "validationFraction",
            json!(-0.1),
            "validationFraction is -0.1",
        ),
        (
            "featuresCol",
            json!(""),
            "featuresCol is \"\", but must be a text that is not empty",
        ),
        (
            "inputCols",
            json!([]),
            "inputCols is [], but must be a list that is not empty or null",
        ),
        (
            "inputCols",
            json!([1]),
            "inputCols[0] is 1, but must be a text",
        ),
        (
            "inputShapes",
            json!([[2], [3]]),
            "inputShapes is a list of 2, but must be one entry for each input, which is 1",
        ),
        (
            "inputNames",
            json!(["x", "y"]),
            "inputNames is a list of 2, but must be one entry for each input, which is 1",
        ),
        ("inputShapes", json!([[-1]]), "inputShapes[0][0] is -1"),
        (
            "gradientGroups",
            json!([]),
            "gradientGroups is [], but must be a list that is not empty or null",
        ),
        (
            "gradientGroups",
            json!([["a"], []]),
            "gradientGroups[1] is [], but must be a list that is not empty",
        ),
        (
            "gradientGroups",
            json!([["a", ""]]),
            "gradientGroups[0][1] is \"\", but must be a text that is not empty",
        ),
        (
            "gradientGroups",
            json!([["a", "b"], ["c", "a"]]),
            "gradientGroups[1][1] is \"a\", but must be a name that is given once",
        ),
        (
            "inputTypes",
            json!(["float16"]),
            "inputTypes[0] is \"float16\", but must be one of auto, float32",
        ),
        ("workDir", json!(""), "workDir is \"\""),
        (
            "dataLanes",
            json!(5),
            "dataLanes is 5, but must be a divisor of the global batch, batchSize x numWorkers = 32 x 1 = 32",
        ),
    ];
    for (param, value, expected) in refused {
        let error = read(&job(json!({param: value}))).unwrap_err();
        assert!(
            matches!(error, JobError::Invalid { .. }),
            "{param} {value}: {error:?}"
        );
        assert!(
            error.to_string().starts_with(expected),
            "{error}\ninstead of {expected}"
        );
    }
    let error = read(&job(json!({"numWorkers": 4, "dataLanes": 2}))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "dataLanes is 2, but must be at least numWorkers (4)"
    );
    for compression in ["topk", "powersgd"] {
        let params = json!({"gradientCompression": compression, "precision": "fp16"});
        let error = read(&job(params)).unwrap_err().to_string();
        let start = format!(
            "gradientCompression is \"{compression}\", but must be none, fp16 or bf16 with precision fp16"
        );
        assert!(error.starts_with(&start), "{error}");
        for precision in ["float32", "tf32", "bf16"] {
            let params = json!({"gradientCompression": compression, "precision": precision});
            read(&job(params)).unwrap();
        }
    }
}

#[test]
fn gradient_groups_are_of_parameters_that_are_trained_and_reduced() {
    let names = ["encoder.0.weight", "encoder.0.bias", "head.weight"];
    let check = |groups: Value| {
        let job = read(&job(json!({ "gradientGroups": groups }))).unwrap();
        job.check_parameters(&names)
            .map_err(|error| error.to_string())
    };
    assert_eq!(check(Value::Null), Ok(()));
    assert_eq!(check(json!([["head.weight"], ["encoder.0.bias"]])), Ok(()));
    for (wrong, like) in [
        ("encoder.0.wieght", names[0]),
        ("encoder.bias", names[1]),
        ("head", names[2]),
    ] {
        assert_eq!(
            check(json!([["head.weight"], ["encoder.0.bias", wrong]])),
            Err(format!(
                "gradientGroups[1][1] is {wrong:?}, but must be the name of a parameter that is trained, such as {like}"
            ))
        );
    }
    let params = json!({"gradientGroups": [["a"]], "syncEvery": 8});
    let error = read(&job(params)).unwrap_err().to_string();
    assert!(
        error.starts_with("syncEvery is 8, but must be 1, or gradientGroups left unset: "),
        "{error}"
    );
}

#[test]
fn a_monitor_is_something_of_the_history() {
    let metrics = ["mae", "bias", "top5_accuracy"].map(String::from);
    let metrics = MetricNames::of_both(metrics.into());
    let check = |params: Value| {
        let checked = read(&job(params)).unwrap().check_metrics(&metrics);
        checked.map_err(|error| error.to_string())
    };
    for params in [
        json!({}),
        json!({"monitor": "top5_accuracy"}),
        json!({"monitor": "val_mae", "validationFraction": 0.1}),
        json!({"monitor": "val_loss", "validationIndicatorCol": "held_out"}),
        json!({"monitor": "bias", "monitorMode": "min"}),
    ] {
        assert_eq!(check(params), Ok(()));
    }
    let names = "loss, mae, bias, top5_accuracy";
    assert_eq!(
        check(json!({"monitor": "val_mae"})),
        Err(format!(
            "monitor is \"val_mae\", but must be one of {names}; those of validation rows need validationFraction or \
             validationIndicatorCol"
        ))
    );
    assert_eq!(
        check(json!({"monitor": "val_rmse", "validationFraction": 0.1})),
        Err(format!(
            "monitor is \"val_rmse\", but must be one of {names}, val_loss, val_mae, val_bias, val_top5_accuracy"
        ))
    );
    assert_eq!(
        check(json!({"monitor": "bias"})),
        Err("monitorMode is auto, but must be min or max for bias, whose name does not say what is better".into())
    );
}

/// The bounds of the schema are those that are enforced: one step outside each is refused, and the bound itself is not.
#[test]
fn every_bound_of_the_schema_is_enforced() {
    let schema: Value = serde_json::from_str(&TrainingJob::schema_json()).unwrap();
    let properties = schema["$defs"]["TrainingParams"]["properties"]
        .as_object()
        .unwrap();
    let mut num_bounds = 0;
    for (name, property) in properties {
        assert!(
            property["description"]
                .as_str()
                .is_some_and(|text| text.ends_with('.')),
            "{name} lacks a doc string"
        );
        assert!(property["title"].is_string(), "{name} lacks a title");
        assert!(property.get("default").is_some(), "{name} lacks a default");
        for (key, outside) in [
            ("minimum", -1.0),
            ("maximum", 1.0),
            ("exclusiveMinimum", 0.0),
            ("exclusiveMaximum", 0.0),
        ] {
            let Some(bound) = property[key].as_f64() else {
                continue;
            };
            num_bounds += 1;
            let value = bound + outside;
            let value = if property["type"].to_string().contains("integer") {
                json!(value as i64)
            } else {
                json!(value)
            };
            let error = read(&job(json!({name: value}))).unwrap_err().to_string();
            assert!(error.contains(name), "{name} = {value}: {error}");
        }
    }
    assert!(num_bounds > 30, "{num_bounds}");
}

#[test]
fn what_does_not_go_together_is_refused() {
    let refused = [
        (
            json!({"gradientClipValue": 0.5, "gradientClipNorm": 1.0}),
            "gradientClipValue is 0.5, but must be left unset where gradientClipNorm is set: gradients are clipped by one of the two",
        ),
        (
            json!({"lrSchedule": "onecycle", "warmupEpochs": 0.5}),
            "warmupEpochs is 0.5, but must be 0 with lrSchedule onecycle, whose own warm-up has the share oneCyclePctStart \
             of the steps",
        ),
    ];
    for (params, expected) in refused {
        assert_eq!(read(&job(params)).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_range_test_is_held_to_its_range() {
    let tested = |min: Value, max: Value, num_steps: i64| {
        let mut value = job(json!({"learningRate": min}));
        value["rangeTest"] = json!({"minRate": min, "maxRate": max, "numSteps": num_steps});
        value
    };
    let refusal = |value: &Value| read(value).unwrap_err().to_string();
    for (min, max, said) in [
        (json!(1.0), json!(0.1), "minRate is 1.0 and maxRate 0.1"),
        (json!(0.1), json!(0.1), "minRate is 0.1 and maxRate 0.1"),
        (json!(0), json!(1), "minRate is 0.0 and maxRate 1.0"),
        (json!(-1e-8), json!(1), "minRate is -1e-8 and maxRate 1.0"),
        (json!(0.1), json!("inf"), "minRate is 0.1 and maxRate inf"),
        (json!(0.1), json!("NaN"), "minRate is 0.1 and maxRate NaN"),
    ] {
        let expected = format!("{said}, but must be above 0, the latter the larger");
        assert_eq!(refusal(&tested(min, max, 100)), expected);
    }
    for num_steps in [1, 0, -1] {
        let expected = format!("numSteps is {num_steps}, but must be at least 2");
        assert_eq!(refusal(&tested(json!(0.1), json!(1), num_steps)), expected);
    }
    let mut value = tested(json!(1e-8), json!(1), 2);
    read(&value).unwrap();
    value["params"]["learningRate"] = json!(0.5);
    assert_eq!(
        refusal(&value),
        "learningRate is 0.5, but must be 1e-8, rangeTest's minRate"
    );
    value["params"]["learningRate"] = json!(1e-8);
    value["attempt"]["resume"] = json!("file:///a");
    assert_eq!(
        refusal(&value),
        "attempt.resume is \"file:///a\", but must be left unset with rangeTest: a test has the losses of all its steps, \
         so it begins with the first"
    );
}

#[test]
fn unknown_fields_are_refused_by_name() {
    let error = read(&job(json!({"batch_size": 3})))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("there is no param batch_size (given as 3); the params are"),
        "{error}"
    );
    for pointer in ["", "/data", "/attempt"] {
        let mut value = job(json!({}));
        value.pointer_mut(pointer).unwrap()["surprise"] = json!(1);
        let error = read(&value).unwrap_err().to_string();
        assert!(
            error.contains("unknown field `surprise`"),
            "{pointer}: {error}"
        );
    }
}

#[test]
fn what_is_not_a_job_is_refused() {
    assert!(matches!(
        TrainingJob::from_json("{"),
        Err(JobError::Malformed(_))
    ));
    assert!(matches!(
        TrainingJob::from_json("[]"),
        Err(JobError::Malformed(_))
    ));
    let changes = [
        ("/format", json!(2), "format is 2, but must be 1"),
        ("/params", json!([]), "params is [], but must be an object"),
        (
            "/data/train",
            json!([]),
            "data.train is [], but must be at least one shard",
        ),
        ("/data/spec/inputs", json!([]), "data.spec: "),
        ("/attempt/id", json!("../x"), "attempt.id is \"../x\""),
        ("/attempt/workDir", json!(""), "attempt.workDir is \"\""),
    ];
    for (pointer, change, expected) in changes {
        let mut value = job(json!({}));
        *value.pointer_mut(pointer).unwrap() = change;
        let error = read(&value).unwrap_err().to_string();
        assert!(
            error.starts_with(expected),
            "{error}\ninstead of {expected}"
        );
    }
}

#[test]
fn a_program_of_libtorch_takes_no_columns_as_they_are() {
    let mut value = job(json!({}));
    value["data"]["spec"]["rawColumns"] = json!(["text"]);
    assert_eq!(read(&value).unwrap().data.spec.raw_columns, ["text"]);
    value["program"] = json!({
        "form": "scripted",
        "eval": "program",
        "loss": {"name": "mse"},
        "optimizer": {"name": "sgd"},
    });
    let message = read(&value).unwrap_err().to_string();
    assert!(
        message.contains("a program of libtorch takes numbers"),
        "{message}"
    );
}

/// As in jobs that were written before it was called so.
#[test]
fn a_former_name_of_a_param_is_read() {
    let mut value = job(json!({}));
    value["params"]["timeout"] = json!(7.5);
    let job = read(&value).unwrap();
    assert_eq!(job.params.collective_timeout, 7.5);
    assert!(!job.to_json().contains("\"timeout\""));
    value["params"]["collectiveTimeout"] = json!(8);
    let error = read(&value).unwrap_err().to_string();
    assert!(
        error.starts_with("there is no param timeout (given as 7.5)"),
        "{error}"
    );
}

/// What ranks compare when they meet: all of the job but what may differ from machine to machine.
#[test]
fn the_terms_of_a_job_name_what_differs() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (program, copy) = (file("program", "a program"), file("copy", "a program"));
    let (other, script) = (file("other", "another"), file("script", "a script"));
    let store = Store::new(&HashMap::new()).unwrap();
    let whole = |params: Value| {
        let mut value = job(params);
        value["program"] = json!({
            "form": "scripted",
            "eval": program,
            "loss": {"script": script},
            "optimizer": {"name": "sgd", "options": {"lr": 0.1}},
        });
        value
    };
    let differing = |change: &dyn Fn(&mut Value)| -> Vec<String> {
        let mut value = whole(json!({}));
        let before = read(&value).unwrap().terms(&store).unwrap();
        change(&mut value);
        let after = read(&value).unwrap().terms(&store).unwrap();
        assert_eq!(before.len(), after.len());
        let pairs = before.into_iter().zip(after);
        pairs
            .filter(|(before, after)| before != after)
            .map(|((before, _), (after, _))| {
                assert_eq!(before, after);
                after
            })
            .collect()
    };
    assert_eq!(
        differing(&|job| job["params"] = json!({"seed": 1, "learningRate": 0.5})),
        ["learningRate", "seed"]
    );
    assert_eq!(
        differing(&|job| job["program"]["optimizer"]["options"]["lr"] = json!(0.2)),
        ["optimizer"]
    );
    assert_eq!(
        differing(&|job| job["attempt"]["id"] = json!("a2")),
        ["attempt"]
    );
    assert_eq!(
        differing(&|job| job["data"]["train"] = json!(["/data/part-1.parquet"])),
        ["data"]
    );
    for loss in [json!({"script": other}), json!({"name": "mse"})] {
        assert_eq!(
            differing(&|job| job["program"]["loss"] = loss.clone()),
            ["loss"]
        );
    }
    assert_eq!(
        differing(&|job| job["program"]["eval"] = json!(other)),
        ["program"]
    );
    assert_eq!(
        differing(&|job| job["program"]["train"] = json!(copy)),
        ["program"]
    );
    let none: [String; 0] = [];
    assert_eq!(
        differing(&|job| {
            job["params"] = json!({
                "numThreads": 2, "memoryBudget": 1 << 24, "verbose": 0, "tensorBoardDir": "/tmp/board",
                "logEveryNSteps": 7, "logGradientNorm": true,
            });
            job["program"]["eval"] = json!(copy);
            job["store"] = json!({"aws_access_key_id": "another"});
        }),
        none
    );
}

/// `FLAMBEAU_BLESS=1` writes the file anew.
#[test]
fn the_schema_in_docs_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/training-job.schema.json");
    let schema = TrainingJob::schema_json();
    if std::env::var_os("FLAMBEAU_BLESS").is_some() {
        std::fs::write(&path, &schema).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        written, schema,
        "run this test with FLAMBEAU_BLESS=1 to write it anew"
    );
}
