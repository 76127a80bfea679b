//! Which programs are data.

use flambeau_torch::{Program, ScriptProgram, check_pure};
use flambeau_train::ProgramForm;
use tch::{Device, Kind, Tensor};

use crate::support::path;

fn check(name: &str) -> Result<(), String> {
    let bytes = std::fs::read(path(name)).unwrap();
    check_pure(ProgramForm::Scripted, &bytes).map_err(|error| error.to_string())
}

#[test]
fn programs_that_compute_are_data() {
    for name in [
        "scale-3-float32.pt",
        "net-float32.pt",
        "several.pt",
        "sparse.pt",
        "traced.pt",
        "output-loss.pt",
        "default.pt",
    ] {
        check(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn programs_that_write_files_are_refused_before_they_do() {
    for (name, said) in [
        ("writing.pt", "it calls aten::save"),
        ("writing-on-load.pt", "__setstate__"),
        ("writing-default.pt", "no literal"),
    ] {
        let error = check(name).unwrap_err();
        assert!(error.contains(said), "{name}: {error}");
    }
    assert!(!path("written").exists());
    // That they would: these two write when they are loaded.
    for name in ["writing-on-load.pt", "writing-default.pt"] {
        let _ = ScriptProgram::load(&std::fs::read(path(name)).unwrap());
        assert!(path("written").exists(), "{name}");
        std::fs::remove_file(path("written")).unwrap();
    }
}

#[test]
fn tensors_that_reach_beyond_the_archive_are_refused() {
    check("bounded.pt").unwrap();
    let error = check("unbounded-storage.pt").unwrap_err();
    let said = "the storage 0 is to have 16384 bytes, and the archive holds 12";
    assert!(error.contains(said), "{error}");
    // Torch loads that one, and refuses the others itself.
    ScriptProgram::load(&std::fs::read(path("unbounded-storage.pt")).unwrap()).unwrap();
    for what in ["sizes", "strides", "offset"] {
        assert!(check(&format!("unbounded-{what}.pt")).is_err(), "{what}");
    }
}

#[test]
fn a_program_leaves_the_threads_mode_as_it_was() {
    let program = ScriptProgram::load(&std::fs::read(path("unrecorded.pt")).unwrap()).unwrap();
    let x = Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    program.forward(&[x.shallow_clone()], false).unwrap();
    assert!((x * 2.0).requires_grad());
}
