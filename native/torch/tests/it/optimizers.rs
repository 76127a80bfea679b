//! Every optimizer with its options against `torch.optim`, given the same gradients.

use flambeau_train::BucketSizes;
use serde_json::json;

use crate::support::{
    Place, Trainer, batch, distance, dtype, expected, job, numbers, paired, path, places, tensor,
};

const WIDTH: usize = 34;

#[test]
fn updates_are_those_of_torch() {
    let expected = expected("optimizers");
    let cases = expected["cases"].as_array().unwrap();
    for (place, case) in places()
        .into_iter()
        .flat_map(|place| cases.iter().map(move |case| (place, case)))
    {
        let dtype = dtype(&case["dtype"]);
        let program = path(&format!("linear-{dtype}.pt"));
        let fields = json!({
            "loss": {"script": path("output-loss.pt")},
            "optimizer": {"name": case["name"], "options": case["options"]},
        });
        let job = job(&program, dtype, WIDTH, 0, fields);
        let mut trainer = Trainer::at(place, &job, BucketSizes::default());
        let gradients = numbers(&expected["gradients"][dtype.name()]);
        for gradient in gradients.chunks_exact(WIDTH) {
            let input = tensor(dtype, &[1, WIDTH], gradient);
            trainer.step(batch(1, input, tensor(dtype, &[1], &[0.0]), None));
        }
        let tensors = trainer.tensors();
        let found = [&tensors["a"][..], &tensors["b"], &tensors["c"]].concat();
        let wanted = numbers(&case["final"]);
        let apart = distance(&found, &wanted);
        // The kernels of a GPU round otherwise: 100 updates of them.
        let tolerance = match (place, dtype.size()) {
            (Place::Gpu, 4) => 1e-4,
            (Place::Gpu, _) => 1e-12,
            _ => 0.0,
        };
        assert!(
            apart <= tolerance,
            "{} {} {dtype} ({place:?}): {apart}",
            case["name"],
            case["options"]
        );
    }
}

#[test]
fn a_step_has_its_factor_of_the_learning_rate() {
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
    trainer.finish(0.125);
    let after = trainer.tensors();
    for (name, values) in &before {
        for (before, after) in paired(values, &after[name]) {
            assert_eq!(before - 0.625, *after, "{name}");
        }
    }
}
