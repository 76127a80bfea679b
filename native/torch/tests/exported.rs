//! Exported programs against PyTorch: outputs, gradients and buffers of the same archives, refusals, damaged files.

use std::collections::HashMap;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use flambeau_torch::exported::{self, ExportedProgram};
use flambeau_torch::{Outputs, Program, TorchError, check_pure};
use flambeau_train::ProgramForm;
use proptest::prelude::*;
use serde_json::{Value, json};
use tch::Tensor;
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

const SEED: i64 = 7;

/// A folder with a folder for each case of `programs/exported.py`, made once.
fn cases() -> &'static Path {
    static CASES: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = CASES.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cases");
        let environment = std::env::var("VIRTUAL_ENV")
            .expect("run under .ci/with-tools, which names the environment");
        let status = Command::new(Path::new(&environment).join("bin/python"))
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/programs/exported.py"
            ))
            .arg(&path)
            .status()
            .expect("Python starts");
        assert!(status.success());
        (folder, path)
    });
    path
}

fn archive(case: &str, mode: &str) -> Vec<u8> {
    std::fs::read(cases().join(case).join(format!("{mode}.pt2"))).unwrap()
}

fn both(case: &str) -> ExportedProgram {
    exported::load(&archive(case, "eval"), Some(&archive(case, "train")))
        .unwrap_or_else(|error| panic!("{case}: {error}"))
}

/// What PyTorch computed.
struct Expected(HashMap<String, Tensor>);

impl Expected {
    fn of(case: &str) -> Expected {
        let tensors =
            Tensor::read_safetensors(cases().join(case).join("expected.safetensors")).unwrap();
        Expected(tensors.into_iter().collect())
    }

    fn list(&self, prefix: &str) -> Vec<Tensor> {
        (0..)
            .map_while(|index| self.0.get(&format!("{prefix}.{index}")))
            .map(Tensor::shallow_clone)
            .collect()
    }
}

fn tensors(outputs: &Outputs) -> Vec<Tensor> {
    outputs
        .named()
        .into_iter()
        .map(|(_, tensor)| tensor.shallow_clone())
        .collect()
}

fn assert_same(what: &str, actual: &Tensor, expected: &Tensor) {
    assert_eq!(
        (actual.size(), actual.kind()),
        (expected.size(), expected.kind()),
        "{what}"
    );
    assert!(
        actual.equal(expected),
        "{what}: {}",
        (actual - expected).abs().max()
    );
}

#[test]
fn programs_compute_what_pytorch_does() {
    tch::set_num_threads(1);
    let mut names: Vec<String> = std::fs::read_dir(cases())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() > 10);
    for case in &names {
        let (program, expected) = (both(case), Expected::of(case));
        let inputs = expected.list("input");
        let scored = tch::no_grad(|| program.forward(&inputs, false)).unwrap();
        let wanted = expected.list("eval");
        assert_eq!(tensors(&scored).len(), wanted.len(), "{case}");
        for (actual, expected) in tensors(&scored).iter().zip(&wanted) {
            assert_same(&format!("{case}: evaluation"), actual, expected);
        }
        for mode in ["eval", "train"] {
            check_pure(ProgramForm::Exported, &archive(case, mode))
                .unwrap_or_else(|error| panic!("{case}, {mode}: {error}"));
        }
        tch::manual_seed(SEED);
        let trained = tensors(
            &program
                .forward(&inputs, true)
                .unwrap_or_else(|error| panic!("{case}: {error}")),
        );
        let wanted = expected.list("train");
        assert_eq!(trained.len(), wanted.len(), "{case}");
        for (actual, expected) in trained.iter().zip(&wanted) {
            assert_same(&format!("{case}: training"), actual, expected);
        }
        let sums: Vec<Tensor> = trained
            .iter()
            .map(|output| (output * output).sum(None))
            .collect();
        sums.into_iter()
            .reduce(|one, other| one + other)
            .unwrap()
            .backward();
        for entry in program.tensors() {
            if entry.is_buffer {
                assert_same(
                    &format!("{case}: {}", entry.name),
                    &entry.tensor,
                    &expected.0[&format!("buffer.{}", entry.name)],
                );
            } else if let Some(gradient) = expected.0.get(&format!("gradient.{}", entry.name)) {
                assert_same(
                    &format!("{case}: gradient of {}", entry.name),
                    &entry.tensor.grad(),
                    gradient,
                );
            } else {
                let is_alias = program.tensors().iter().any(|other| {
                    other.name != entry.name && other.tensor.data_ptr() == entry.tensor.data_ptr()
                });
                assert!(
                    is_alias || !entry.tensor.grad().defined(),
                    "{case}: {}",
                    entry.name
                );
            }
        }
    }
}

#[test]
fn new_values_of_parameters_are_seen() {
    let program = both("mlp");
    let x = Tensor::ones([2, 4], tch::kind::FLOAT_CPU);
    for entry in program
        .tensors()
        .iter()
        .filter(|entry| entry.name == "4.weight" || entry.name == "4.bias")
    {
        let value = if entry.name == "4.bias" { 3.0 } else { 0.0 };
        entry.tensor.shallow_clone().set_data(&Tensor::full(
            entry.tensor.size(),
            value,
            tch::kind::FLOAT_CPU,
        ));
    }
    let output = tch::no_grad(|| program.forward(&[x], false)).unwrap();
    assert_same(
        "output",
        output.named()[0].1,
        &Tensor::full([2, 3], 3.0, tch::kind::FLOAT_CPU),
    );
}

#[test]
fn weights_are_those_of_the_state() {
    let named = |case: &str| -> Vec<(String, bool, bool, bool)> {
        let tensors = both(case).tensors();
        tensors
            .into_iter()
            .map(|entry| {
                (
                    entry.name,
                    entry.is_buffer,
                    entry.requires_grad,
                    entry.persistent,
                )
            })
            .collect()
    };
    let of = |name: &str, is_buffer, requires_grad, persistent| {
        (name.to_string(), is_buffer, requires_grad, persistent)
    };
    let tied = [
        of("table.weight", false, true, true),
        of("output.weight", false, true, true),
        of("scale", false, false, true),
    ];
    let mut actual = named("tied");
    actual.sort();
    let mut wanted = tied.to_vec();
    wanted.sort();
    assert_eq!(actual, wanted);
    assert!(named("several").contains(&of("scale", true, false, false)));
    assert!(named("mlp").contains(&of("1.num_batches_tracked", true, false, true)));
}

#[test]
fn outputs_have_the_names_of_the_module() {
    let several = both("several");
    let inputs = Expected::of("several").list("input");
    let outputs = several.forward(&inputs, false).unwrap();
    assert!(matches!(outputs, Outputs::Dict(_)));
    let names: Vec<_> = outputs
        .named()
        .into_iter()
        .map(|(name, _)| name.unwrap())
        .collect();
    assert_eq!(names, ["sum", "picked", "clamped"]);
    let pair = both("tuple")
        .forward(&Expected::of("tuple").list("input"), false)
        .unwrap();
    let Outputs::NamedTuple(fields) = pair else {
        panic!()
    };
    assert_eq!(
        fields
            .iter()
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>(),
        ["mean", "deviation"]
    );
}

#[test]
fn one_graph_trains_where_the_mode_makes_no_difference() {
    let alone = |case: &str| exported::load(&archive(case, "eval"), None).unwrap();
    let program = alone("sizes");
    program.check_trainable().unwrap();
    let output = program
        .forward(&Expected::of("sizes").list("input"), true)
        .unwrap();
    output.named()[0].1.sum(None).backward();
    assert!(
        program
            .tensors()
            .iter()
            .all(|entry| entry.tensor.grad().defined())
    );
    for (case, node) in [
        ("mlp", "aten.batch_norm.default"),
        ("recurrent", "aten.lstm.input"),
        ("transformer", "dropout"),
    ] {
        let program = alone(case);
        let error = program.check_trainable().unwrap_err().to_string();
        assert!(
            error.contains(node) && error.contains("flambeau.save_program"),
            "{error}"
        );
        let inputs = Expected::of(case).list("input");
        assert_eq!(
            program.forward(&inputs, true).unwrap_err().to_string(),
            error
        );
        program.forward(&inputs, false).unwrap();
    }
}

#[test]
fn graphs_that_do_not_belong_together_are_refused() {
    let refusal =
        |eval: &[u8], train: Option<&[u8]>| exported::load(eval, train).err().unwrap().to_string();
    let error = refusal(&archive("mlp", "eval"), Some(&archive("sizes", "train")));
    assert!(
        error.contains("not that of the evaluation graph"),
        "{error}"
    );
    let error = refusal(
        &archive("mlp", "eval"),
        Some(&archive("mlp_float64", "train")),
    );
    assert!(
        error.contains("not that of the evaluation graph"),
        "{error}"
    );
    let error = refusal(&archive("mlp", "train"), None);
    assert!(
        error.contains("is in training mode") && error.contains("batch_norm"),
        "{error}"
    );
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let program = both("mlp");
    let error = |inputs: &[Tensor]| program.forward(inputs, false).unwrap_err();
    let (float, double) = (tch::kind::FLOAT_CPU, tch::kind::DOUBLE_CPU);
    assert!(
        matches!(error(&[]), TorchError::Param(text) if text.contains("takes 1 inputs (input), not 0"))
    );
    for input in [
        Tensor::zeros([2, 5], float),
        Tensor::zeros([2], float),
        Tensor::zeros([2, 4], double),
        Tensor::zeros([0, 4], float),
    ] {
        assert!(matches!(error(&[input]), TorchError::Data(_)));
    }
    let index = Tensor::from_slice(&[0i64, 9]);
    let several = both("several");
    let failed = several
        .forward(&[Tensor::zeros([2, 3], float), index], false)
        .unwrap_err()
        .to_string();
    assert!(
        failed.contains("(aten.index.Tensor): index 9 is out of bounds"),
        "{failed}"
    );
}

/// The archive with its entries changed; `None` leaves one out.
fn edited(bytes: &[u8], edit: impl Fn(&str, Vec<u8>) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut source = ZipArchive::new(Cursor::new(bytes)).unwrap();
    let mut target = ZipWriter::new(Cursor::new(vec![]));
    for index in 0..source.len() {
        let mut entry = source.by_index(index).unwrap();
        let mut data = vec![];
        entry.read_to_end(&mut data).unwrap();
        if let Some(data) = edit(entry.name(), data) {
            target
                .start_file(entry.name(), SimpleFileOptions::default())
                .unwrap();
            target.write_all(&data).unwrap();
        }
    }
    target.finish().unwrap().into_inner()
}

/// The archive with its graph changed.
fn with_graph(bytes: &[u8], change: impl Fn(&mut Value)) -> Vec<u8> {
    edited(bytes, |name, data| {
        if !name.ends_with("models/model.json") {
            return Some(data);
        }
        let mut model = serde_json::from_slice(&data).unwrap();
        change(&mut model);
        Some(serde_json::to_vec(&model).unwrap())
    })
}

#[test]
fn what_cannot_be_run_is_named_when_it_is_loaded() {
    let whole = archive("mlp", "eval");
    let node = |change: fn(&mut Value)| {
        with_graph(&whole, |model| {
            change(&mut model["graph_module"]["graph"]["nodes"][0])
        })
    };
    let model = |change: fn(&mut Value)| with_graph(&whole, change);
    for (bytes, message) in [
        (
            node(|node| node["target"] = json!("torch.ops.mine.twice.default")),
            "node linear (mine.twice.default): libtorch has no such operator",
        ),
        (
            node(|node| node["target"] = json!("torch.ops.higher_order.cond")),
            "node linear (higher_order.cond) is a higher-order operator",
        ),
        (
            node(|node| node["target"] = json!("os.system")),
            "node linear (os.system) is a function of Python's",
        ),
        (
            node(|node| node["inputs"][0]["arg"] = json!({"as_tensor": {"name": "nobody"}})),
            "uses nobody, which nothing computes",
        ),
        (
            node(|node| node["inputs"][0]["arg"] = json!({"as_string": "x"})),
            "input expects Tensor, got String",
        ),
        (
            node(|node| node["inputs"][0]["arg"] = json!({"as_none": true})),
            "input expects Tensor, got None",
        ),
        (
            node(|node| node["inputs"][0]["arg"] = json!({"as_ints": [1]})),
            "input expects Tensor, got a list",
        ),
        (
            node(|node| node["inputs"][0]["arg"] = json!({"as_custom_obj": {}})),
            "an argument that this version does not know",
        ),
        (
            node(|node| node["inputs"][0]["name"] = json!("other")),
            "it has no argument other",
        ),
        (
            node(|node| {
                node["inputs"].as_array_mut().unwrap().remove(1);
            }),
            "argument weight is missing",
        ),
        (
            node(|node| {
                node["outputs"] =
                    json!([{"as_tensor": {"name": "linear"}}, {"as_tensor": {"name": "b"}}])
            }),
            "it returns 1 values, not 2",
        ),
        (
            model(|model| model["schema_version"]["major"] = json!(9)),
            "its schema has version 9.",
        ),
        (
            model(|model| model["graph_module"]["graph"]["outputs"][0] = json!({"as_int": 3})),
            "something else than tensors",
        ),
        (
            model(|model| {
                model["graph_module"]["signature"]["input_specs"][0] =
                    json!({"token": {"arg": {"name": "t"}}})
            }),
            "side effects",
        ),
        (
            model(|model| {
                model["graph_module"]["graph"]["tensor_values"]["input"]["sizes"][0] =
                    json!({"as_int": 3})
            }),
            "always has 3 rows",
        ),
        (
            model(|model| model["graph_module"]["module_call_graph"] = json!([])),
            "does not tell what it returns",
        ),
        (
            edited(&whole, |name, data| {
                (!name.ends_with("weight_0")).then_some(data)
            }),
            "weight_0",
        ),
        (
            edited(&whole, |name, data| {
                Some(if name.ends_with("weight_0") {
                    data[1..].to_vec()
                } else {
                    data
                })
            }),
            "no multiple of 4",
        ),
        (
            edited(&whole, |name, data| {
                Some(if name.ends_with("weight_0") {
                    data[8..].to_vec()
                } else {
                    data
                })
            }),
            "0.weight: ",
        ),
        (
            edited(&whole, |name, data| {
                (!name.ends_with("archive_format")).then_some(data)
            }),
            "no archive of torch.export.save",
        ),
        (
            edited(&whole, |name, data| {
                (!name.ends_with("model.json")).then_some(data)
            }),
            "holds no graph",
        ),
        (
            edited(&whole, |name, data| {
                Some(if name.ends_with("byteorder") {
                    b"big".to_vec()
                } else {
                    data
                })
            }),
            "big-endian",
        ),
    ] {
        let error = exported::load(&bytes, None)
            .err()
            .unwrap_or_else(|| panic!("loaded, not: {message}"));
        assert!(
            matches!(&error, TorchError::Param(_)) && error.to_string().contains(message),
            "{error}, not: {message}"
        );
    }
    exported::load(&edited(&whole, |_, data| Some(data)), None).unwrap();
}

/// The graph reads a file, as `torch.from_file` does.
#[test]
fn a_graph_that_reads_a_file_is_no_data() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("written");
    let bytes = with_graph(&archive("sizes", "eval"), |model| {
        let node = &mut model["graph_module"]["graph"]["nodes"][0];
        node["target"] = json!("torch.ops.aten.from_file.default");
        let argument = |name: &str, arg: Value| json!({"name": name, "arg": arg, "kind": 1});
        node["inputs"] = json!([
            argument("filename", json!({"as_string": file})),
            argument("shared", json!({"as_bool": true})),
            argument("size", json!({"as_int": 4})),
        ]);
        node["outputs"] = json!([{"as_tensor": {"name": "from_file"}}]);
        let rest = model["graph_module"]["graph"]["nodes"]
            .as_array_mut()
            .unwrap();
        rest.truncate(1);
        model["graph_module"]["graph"]["outputs"] = json!([{"as_tensor": {"name": "from_file"}}]);
    });
    let error = check_pure(ProgramForm::Exported, &bytes).unwrap_err();
    assert!(
        error.to_string().contains("it calls aten::from_file"),
        "{error}"
    );
    assert!(!file.exists());
    // That it would.
    let program = exported::load(&bytes, None).unwrap();
    let _ = program.forward(&Expected::of("sizes").list("input"), false);
    assert!(file.exists());
}

#[test]
fn evaluation_leaves_buffers_as_they_are() {
    let program = both("counting");
    let inputs = Expected::of("counting").list("input");
    let count = || {
        let tensors = program.tensors();
        let count = tensors.iter().find(|entry| entry.name == "count").unwrap();
        count.tensor.double_value(&[])
    };
    for _ in 0..2 {
        tch::no_grad(|| program.forward(&inputs, false)).unwrap();
        assert_eq!(count(), 0.0);
    }
    program.forward(&inputs, true).unwrap();
    assert_eq!(count(), 1.0);
}

/// A graph fails in a part with gradients that lies in one without.
#[test]
fn modes_end_in_reverse_order_after_an_error() {
    let bytes = with_graph(&archive("modes", "train"), |model| {
        let nodes = model["graph_module"]["graph"]["nodes"]
            .as_array_mut()
            .unwrap();
        let outer = nodes
            .iter_mut()
            .find(|node| node["target"] == "torch.ops.higher_order.wrap_with_set_grad_enabled")
            .unwrap();
        let mut inner = outer.clone();
        let outer = &mut outer["inputs"][1]["arg"]["as_graph"]["graph"];
        inner["outputs"] = outer["outputs"].clone();
        inner["inputs"][0]["arg"]["as_bool"] = json!(true);
        let linear = &mut inner["inputs"][1]["arg"]["as_graph"]["graph"]["nodes"][0];
        linear["inputs"][1]["arg"] = linear["inputs"][0]["arg"].clone();
        outer["nodes"] = json!([inner]);
    });
    let program = exported::load(&bytes, None).unwrap();
    let records = || {
        let leaf = Tensor::ones([1], tch::kind::FLOAT_CPU).set_requires_grad(true);
        (leaf * 2).requires_grad()
    };
    assert!(records());
    let inputs = Expected::of("modes").list("input");
    let error = program.forward(&inputs, false).unwrap_err().to_string();
    assert!(error.contains("aten.linear.default"), "{error}");
    assert!(records());
}

#[test]
fn what_an_archive_comes_to_in_memory_is_limited() {
    // A weight of 100 MB of zeros takes 100 KB in a compressed archive.
    let grown = edited(&archive("mlp", "eval"), |name, data| {
        Some(match name.ends_with("weight_0") {
            true => vec![0; 100 << 20],
            false => data,
        })
    });
    assert!(grown.len() < 1 << 20);
    let error = exported::load(&grown, None).err().unwrap().to_string();
    assert!(error.contains("comes to more than 8 times"), "{error}");
    // One row of a weight, said to be all of its rows.
    let wide = edited(&archive("mlp", "eval"), |name, data| {
        if !name.ends_with("weights_config.json") {
            return Some(data);
        }
        let mut config: Value = serde_json::from_slice(&data).unwrap();
        let meta = &mut config["config"]["0.weight"]["tensor_meta"];
        meta["sizes"] = json!([{"as_int": 1i64 << 40}, {"as_int": 4}]);
        meta["strides"] = json!([{"as_int": 0}, {"as_int": 1}]);
        Some(serde_json::to_vec(&config).unwrap())
    });
    let error = exported::load(&wide, None).err().unwrap().to_string();
    assert!(error.contains("comes to more than 8 times"), "{error}");
}

/// How many cases of random bytes are tried: more where `FLAMBEAU_LONG` is 1.
fn cases_of_bytes() -> ProptestConfig {
    let is_long = std::env::var("FLAMBEAU_LONG").is_ok_and(|value| value == "1");
    ProptestConfig {
        cases: if is_long { 5000 } else { 48 },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Changes of bytes: what lies at a place (as a part of the length) becomes other bytes, perhaps more or fewer.
fn changes() -> impl Strategy<Value = Vec<(f64, usize, Vec<u8>)>> {
    let bytes = prop::collection::vec(any::<u8>(), 0..8);
    prop::collection::vec((0.0..1.0, 0..8usize, bytes), 1..6)
}

fn changed(mut data: Vec<u8>, changes: &[(f64, usize, Vec<u8>)]) -> Vec<u8> {
    for (place, length, bytes) in changes {
        let start = (data.len() as f64 * place) as usize;
        let end = (start + length).min(data.len());
        data.splice(start..end, bytes.iter().copied());
    }
    data
}

proptest! {
    #![proptest_config(cases_of_bytes())]

    /// Bytes of one entry, or of the archive itself, are changed: the entries' own checksums do not save the reader.
    #[test]
    fn archives_of_any_bytes_are_read_or_refused(
        case in prop::sample::select(vec!["several", "mlp", "modes"]),
        layout in prop::sample::select(vec!["eval", "train", "2.7"]),
        place in 0.0..1.0f64,
        changes in changes(),
        inside in prop::bool::weighted(0.9),
    ) {
        let whole = archive(case, layout);
        let bytes = if inside {
            let names = ZipArchive::new(Cursor::new(&whole[..])).unwrap();
            // libtorch's own reader of pickles is not ours to try.
            let mut names: Vec<String> =
                names.file_names().filter(|name| !name.ends_with(".pt")).map(str::to_string).collect();
            names.sort();
            let name = names[(names.len() as f64 * place) as usize].clone();
            edited(&whole, |other, data| {
                Some(if other == name { changed(data, &changes) } else { data })
            })
        } else {
            changed(whole, &changes)
        };
        let _ = check_pure(ProgramForm::Exported, &bytes);
        if let Ok(program) = exported::load(&bytes, None) {
            let _ = tch::no_grad(|| program.forward(&Expected::of(case).list("input"), false));
        }
    }
}

#[test]
fn a_pickled_tensor_is_refused() {
    let bytes = edited(&archive("mlp", "eval"), |name, data| {
        let text =
            String::from_utf8_lossy(&data).replace("\"use_pickle\": false", "\"use_pickle\": true");
        Some(if name.ends_with("weights_config.json") {
            text.into_bytes()
        } else {
            data
        })
    });
    let error = exported::load(&bytes, None).err().unwrap().to_string();
    assert!(error.contains("is a pickled tensor"), "{error}");
}

#[test]
fn archives_without_weights_have_hollow_ones() {
    let hollow = edited(&archive("mlp", "eval"), |name, data| {
        Some(if name.contains("/weight_") {
            vec![]
        } else {
            data
        })
    });
    let program = exported::load(&hollow, None).unwrap();
    let x = Tensor::ones([2, 4], tch::kind::FLOAT_CPU);
    let output = tch::no_grad(|| program.forward(&[x], false)).unwrap();
    assert_same(
        "output",
        output.named()[0].1,
        &Tensor::zeros([2, 3], tch::kind::FLOAT_CPU),
    );
    assert!(
        program.tensors().iter().all(|entry| entry
            .tensor
            .stride()
            .iter()
            .all(|&stride| stride == 0))
    );
}

#[test]
fn a_trained_program_is_written_without_its_sample_inputs() {
    let (eval, train) = (archive("mlp", "eval"), archive("mlp", "train"));
    let folder = tempfile::tempdir().unwrap();
    let program = both("mlp").with_archives(&eval, Some(&train)).unwrap();
    let names = program.write(folder.path()).unwrap();
    assert_eq!(names, ["program.pt2", "program-train.pt2"]);
    let [written, graph] =
        [0, 1].map(|index| std::fs::read(folder.path().join(&names[index])).unwrap());
    exported::load(&written, Some(&graph)).unwrap();
    for (before, after) in [(&eval, &written), (&train, &graph)] {
        let mut before = ZipArchive::new(Cursor::new(before)).unwrap();
        let mut after = ZipArchive::new(Cursor::new(after)).unwrap();
        assert_eq!(before.len(), after.len());
        for index in 0..before.len() {
            let (mut old, mut new) = (vec![], vec![]);
            before
                .by_index(index)
                .unwrap()
                .read_to_end(&mut old)
                .unwrap();
            let mut entry = after.by_index(index).unwrap();
            entry.read_to_end(&mut new).unwrap();
            let dropped = entry.name().contains("/sample_inputs/");
            assert!(
                if dropped { new.is_empty() } else { new == old },
                "{}",
                entry.name()
            );
        }
    }
    assert!(both("mlp").write(folder.path()).unwrap().is_empty());
}

#[test]
fn older_layouts_are_read() {
    for case in ["mlp", "tied", "several"] {
        let (now, expected) = (both(case), Expected::of(case));
        for version in ["2.7", "2.8"] {
            let program = exported::load(&archive(case, version), None)
                .unwrap_or_else(|error| panic!("{case} as of torch {version}: {error}"));
            assert_eq!(now.tensors().len(), program.tensors().len(), "{case}");
            for (entry, other) in now.tensors().iter().zip(program.tensors()) {
                assert_eq!(
                    (&entry.name, entry.is_buffer, entry.requires_grad),
                    (&other.name, other.is_buffer, other.requires_grad)
                );
                assert_same(&entry.name, &entry.tensor, &other.tensor);
            }
            let outputs = tch::no_grad(|| program.forward(&expected.list("input"), false)).unwrap();
            let wanted = expected.list("eval");
            assert_eq!(tensors(&outputs).len(), wanted.len(), "{case}");
            for (actual, expected) in tensors(&outputs).iter().zip(&wanted) {
                assert_same(&format!("{case} as of torch {version}"), actual, expected);
            }
        }
    }
    let pickled = edited(&archive("mlp", "2.8"), |name, data| {
        Some(if name.ends_with("weights/model.pt") {
            data[..data.len() / 2].to_vec()
        } else {
            data
        })
    });
    let error = exported::load(&pickled, None).err().unwrap().to_string();
    assert!(error.contains("data/weights/model.pt: "), "{error}");
    // Storages of which the archive holds no bytes.
    let hollowed = edited(&archive("mlp", "2.8"), |name, data| {
        Some(if name.ends_with("weights/model.pt") {
            edited(&data, |inner, data| {
                Some(if inner.contains("/data/") {
                    vec![0; 4]
                } else {
                    data
                })
            })
        } else {
            data
        })
    });
    let error = exported::load(&hollowed, None).err().unwrap().to_string();
    assert!(error.contains("and the archive holds 4 of them"), "{error}");
}

#[test]
fn damaged_archives_are_errors() {
    let mut loaded = 0;
    let mut attempt = |bytes: &[u8]| loaded += usize::from(exported::load(bytes, None).is_ok());
    for layout in ["train", "2.7"] {
        let whole = archive("several", layout);
        (0..whole.len())
            .step_by(97)
            .for_each(|cut| attempt(&whole[..cut]));
        for place in (0..whole.len()).step_by(53) {
            let mut damaged = whole.clone();
            damaged[place] ^= 0xff;
            attempt(&damaged);
        }
    }
    // What was not changed where it matters, such as the sample inputs, still loads.
    assert!(loaded > 0);
}

/// Every value of the JSON replaced in turn by values of other types.
#[test]
fn json_of_other_types_is_an_error() {
    let whole = archive("several", "train");
    for entry in [
        "models/model.json",
        "model_weights_config.json",
        "model_constants_config.json",
    ] {
        let mut text = vec![];
        let mut source = ZipArchive::new(Cursor::new(&whole[..])).unwrap();
        let name = source
            .file_names()
            .find(|name| name.ends_with(entry))
            .unwrap()
            .to_string();
        source
            .by_name(&name)
            .unwrap()
            .read_to_end(&mut text)
            .unwrap();
        let json: Value = serde_json::from_slice(&text).unwrap();
        let mut pointers = vec![];
        collect(&json, String::new(), &mut pointers);
        for (index, pointer) in pointers.iter().enumerate() {
            let others = [
                json!(null),
                json!(-1),
                json!(1i64 << 40),
                json!("x"),
                json!([]),
                json!({}),
                json!([[1]]),
                json!(0.5),
            ];
            let mut changed = json.clone();
            *changed.pointer_mut(pointer).unwrap() = others[index % others.len()].clone();
            let changed = serde_json::to_vec(&changed).unwrap();
            let bytes = edited(&whole, |name, data| {
                Some(if name.ends_with(entry) {
                    changed.clone()
                } else {
                    data
                })
            });
            if let Ok(program) = exported::load(&bytes, None) {
                // Whatever the graph has become, running it is a result or an error.
                let _ =
                    tch::no_grad(|| program.forward(&Expected::of("several").list("input"), false));
            }
        }
    }
}

fn collect(value: &Value, pointer: String, pointers: &mut Vec<String>) {
    pointers.push(pointer.clone());
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(name, _)| *name != "metadata")
            .for_each(|(name, field)| {
                collect(
                    field,
                    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1")),
                    pointers,
                )
            }),
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, item)| collect(item, format!("{pointer}/{index}"), pointers));
        }
        _ => {}
    }
}
