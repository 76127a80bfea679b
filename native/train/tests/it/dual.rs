//! Forward-mode differentiation, the reference's way to a gradient: nothing of the models' backward is in it.

/// A number and its derivatives by every parameter.
#[derive(Clone, Debug)]
pub struct Dual {
    pub value: f64,
    pub slopes: Vec<f64>,
}

impl Dual {
    pub fn constant(value: f64, num: usize) -> Dual {
        Dual {
            value,
            slopes: vec![0.0; num],
        }
    }

    /// The parameter of this index.
    pub fn parameter(value: f64, index: usize, num: usize) -> Dual {
        let mut dual = Dual::constant(value, num);
        dual.slopes[index] = 1.0;
        dual
    }

    fn map(&self, value: f64, slope: f64) -> Dual {
        Dual {
            value,
            slopes: self.slopes.iter().map(|s| s * slope).collect(),
        }
    }

    pub fn plus(&self, other: &Dual) -> Dual {
        let slopes = self
            .slopes
            .iter()
            .zip(&other.slopes)
            .map(|(a, b)| a + b)
            .collect();
        Dual {
            value: self.value + other.value,
            slopes,
        }
    }

    pub fn times(&self, other: &Dual) -> Dual {
        let slopes = self
            .slopes
            .iter()
            .zip(&other.slopes)
            .map(|(a, b)| a * other.value + b * self.value)
            .collect();
        Dual {
            value: self.value * other.value,
            slopes,
        }
    }

    pub fn scaled(&self, factor: f64) -> Dual {
        self.map(self.value * factor, factor)
    }

    pub fn tanh(&self) -> Dual {
        let value = self.value.tanh();
        self.map(value, 1.0 - value * value)
    }

    pub fn squared(&self) -> Dual {
        self.map(self.value * self.value, 2.0 * self.value)
    }
}
