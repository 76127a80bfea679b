//! Every optimizer with its options against `torch.optim`, given the same gradients.

use serde_json::json;

use crate::support::{Trainer, batch, distance, dtype, expected, job, numbers, path, tensor};

const WIDTH: usize = 34;

#[test]
fn updates_are_those_of_torch() {
    let expected = expected("optimizers");
    for case in expected["cases"].as_array().unwrap() {
        let dtype = dtype(&case["dtype"]);
        let program = path(&format!("linear-{dtype}.pt"));
        let fields = json!({
            "loss": {"script": path("output-loss.pt")},
            "optimizer": {"name": case["name"], "options": case["options"]},
        });
        let mut trainer = Trainer::new(&job(&program, dtype, WIDTH, 0, fields));
        let gradients = numbers(&expected["gradients"][dtype.name()]);
        for gradient in gradients.chunks_exact(WIDTH) {
            let input = tensor(dtype, &[1, WIDTH], gradient);
            trainer.step(batch(1, input, tensor(dtype, &[1], &[0.0]), None));
        }
        let tensors = trainer.tensors();
        let found = [&tensors["a"][..], &tensors["b"], &tensors["c"]].concat();
        let wanted = numbers(&case["final"]);
        let apart = distance(&found, &wanted);
        assert!(
            apart == 0.0,
            "{} {} {dtype}: {apart}",
            case["name"],
            case["options"]
        );
    }
}

#[test]
fn a_learning_rate_of_the_schedule_is_the_optimizers() {
    let dtype = flambeau_data::DType::Float64;
    let fields = json!({"loss": {"script": path("output-loss.pt")}, "optimizer": {"name": "sgd", "options": {"lr": 5.0}}});
    let mut trainer = Trainer::new(&job(&path("linear-float64.pt"), dtype, WIDTH, 0, fields));
    let before = trainer.tensors();
    let ones = || {
        batch(
            1,
            tensor(dtype, &[1, WIDTH], &[1.0; WIDTH]),
            tensor(dtype, &[1], &[0.0]),
            None,
        )
    };
    trainer.micro(ones(), 0, true, 1);
    trainer.finish(Some(0.5));
    let after = trainer.tensors();
    for (name, values) in &before {
        for (before, after) in values.iter().zip(&after[name]) {
            assert_eq!(before - 0.5, *after, "{name}");
        }
    }
}
