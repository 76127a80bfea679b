//! Which programs are data.

use flambeau_torch::{ScriptProgram, check_pure};
use flambeau_train::ProgramForm;

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
