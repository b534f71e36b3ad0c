//! Few numbers about few measurements.

/// Smallest, middle and largest of some measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` of no measurement, or if one is not a number. Of an even count the median is the mean of the middle two.
    pub(crate) fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        if sorted.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let n = sorted.len();
        let median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0;
        Some(Spread { min, median, max })
    }
}

/// Measurements of both sides, round by round.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Paired {
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

impl Paired {
    /// Adds one round.
    pub(crate) fn push(&mut self, ours: f64, theirs: f64) {
        self.ours.push(ours);
        self.theirs.push(theirs);
    }

    pub(crate) fn ours(&self) -> Option<Spread> {
        Spread::of(&self.ours)
    }

    pub(crate) fn theirs(&self) -> Option<Spread> {
        Spread::of(&self.theirs)
    }

    /// Ours over theirs: `median` is the ratio of the medians, the ends are over the rounds' own ratios. The ratio of the medians can lie
    /// outside the ends.
    pub(crate) fn ratio(&self) -> Option<Spread> {
        let rounds: Vec<f64> = self.ours.iter().zip(&self.theirs).map(|(a, b)| a / b).collect();
        let rounds = Spread::of(&rounds)?;
        let median = self.ours()?.median / self.theirs()?.median;
        Some(Spread { median, ..rounds })
    }
}

/// Slope of the least-squares line through points, y per x.
pub(crate) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let n = points.len() as f64;
    let mean_x = points.iter().map(|point| point.0).sum::<f64>() / n;
    let mean_y = points.iter().map(|point| point.1).sum::<f64>() / n;
    let covariance: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let slope = covariance / variance;
    slope.is_finite().then_some(slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_middle_two() {
        let odd = Spread::of(&[3.0, 1.0, 10.0]);
        assert_eq!(odd, Some(Spread { min: 1.0, median: 3.0, max: 10.0 }));
        let even = Spread::of(&[4.0, 1.0, 2.0, 100.0]);
        assert_eq!(even, Some(Spread { min: 1.0, median: 3.0, max: 100.0 }));
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[1.0, f64::NAN]), None);
        assert_eq!(Spread::of(&[1.0, f64::INFINITY]), None);
    }

    #[test]
    fn the_ratio_is_of_the_medians_and_its_ends_are_of_the_rounds() {
        let mut paired = Paired::default();
        for (ours, theirs) in [(20.0, 10.0), (30.0, 10.0), (100.0, 40.0)] {
            paired.push(ours, theirs);
        }
        // Medians 30 and 10; the rounds gave 2, 3 and 2.5.
        assert_eq!(paired.ratio(), Some(Spread { min: 2.0, median: 3.0, max: 3.0 }));
        let mut stopped = Paired::default();
        stopped.push(1.0, 0.0);
        assert_eq!(stopped.ratio(), None, "a peer that did nothing is no peer");
    }

    #[test]
    fn the_slope_is_of_the_line() {
        assert_eq!(slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]), Some(2.0));
        assert_eq!(slope(&[(0.0, 0.0), (1.0, 2.0), (2.0, 1.0)]), Some(0.5));
        assert_eq!(slope(&[(1.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(slope(&[]), None);
    }
}
