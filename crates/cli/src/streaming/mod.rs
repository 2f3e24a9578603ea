//! Weights that are larger than memory: which stay, who reads the others ahead, and how fast that will be.

mod forecast;
mod metrics;
mod order;
mod streamer;
#[cfg(all(test, target_os = "linux"))]
mod tests;

use std::sync::Arc;

use anyhow::{Context, Result};
use lichen_memory::{ModelBytes, ResidencyPlan};

pub(crate) use forecast::Forecast;
pub(crate) use metrics::Streams;
pub(crate) use order::reading_order;
pub(crate) use streamer::Streamer;

use crate::load::Opened;
use crate::memory::Memory;
use crate::output;

impl Opened {
    /// What of the weights stays in memory and what is streamed, and how fast that will be; no forecast if all fits
    /// until contexts grow. The disk is read for it. `None` for a file that is not mapped, or if nobody knows the room.
    ///
    /// # Errors
    /// The file can't be read.
    pub(crate) fn residency(
        &self,
        memory: &Memory,
        needs: &ModelBytes,
        threads: usize,
    ) -> Result<Option<(ResidencyPlan, Option<Forecast>)>> {
        let (Some(mapping), Some(room)) = (self.checkpoint.mapping(), memory.weight_room(needs)) else {
            return Ok(None);
        };
        let mut plan = ResidencyPlan::new(&reading_order(&self.spec.lower(), &self.checkpoint));
        plan.resize(room);
        let forecast = (plan.streamed_bytes() > 0)
            .then(|| Forecast::measure(mapping, &plan, room, threads))
            .transpose()
            .with_context(|| self.path.display().to_string())?;
        Ok(Some((plan, forecast)))
    }

    /// Starts to stream the weights, and tells how fast that will be.
    ///
    /// # Errors
    /// As [`Opened::residency`], or the system gives no thread.
    pub(crate) fn stream(
        &self,
        name: &str,
        memory: &Memory,
        needs: &ModelBytes,
        threads: usize,
    ) -> Result<Option<Arc<Streamer>>> {
        let (Some(mapping), Some((plan, forecast))) =
            (self.checkpoint.mapping(), self.residency(memory, needs, threads)?)
        else {
            return Ok(None);
        };
        if let Some(forecast) = &forecast {
            output::note(forecast.line(name));
        }
        let (watched, needs) = (memory.clone(), *needs);
        let room = Box::new(move || watched.weight_room(&needs));
        let streamer = Streamer::start(name, mapping.clone(), plan, forecast, room)
            .context("the thread that reads weights could not be started")?;
        memory.streams.add(&streamer);
        Ok(Some(Arc::new(streamer)))
    }
}
