//! Keys and values that all families share.

use lichen_format::{Checkpoint, TensorInfo};
use lichen_op::{Activation, Rope, RopeLayout};
use lichen_tensor::quant;

use crate::ModelError;
use crate::spec::{Attention, Embed, Ffn, Head, LayerSpec, Mixer, ModelSpec, Residual};

/// Larger sizes are taken for damage: they would only cost memory before the shape check refuses them.
const MAX_SIZE: u32 = 1 << 24;
/// The same for one head.
const MAX_HEAD_DIM: u32 = 1 << 14;

/// A checkpoint seen by an importer.
pub(super) struct Reader<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) arch: &'a str,
    pub(super) context_cap: Option<u32>,
}

impl Reader<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    pub(super) fn u32(&self, name: &str) -> Option<u32> {
        self.checkpoint.metadata.u32(&self.key(name))
    }

    pub(super) fn f32(&self, name: &str) -> Option<f32> {
        self.checkpoint.metadata.f32(&self.key(name))
    }

    /// A size that must be there: at least 1.
    pub(super) fn size(&self, name: &str, max: u32) -> Result<u32, ModelError> {
        let value = self.u32(name).ok_or_else(|| ModelError::Key(self.key(name)))?;
        self.in_range(name, value, max)
    }

    fn size_or(&self, name: &str, default: u32, max: u32) -> Result<u32, ModelError> {
        self.in_range(name, self.u32(name).unwrap_or(default), max)
    }

    fn in_range(&self, name: &str, value: u32, max: u32) -> Result<u32, ModelError> {
        if (1..=max).contains(&value) {
            return Ok(value);
        }
        Err(self.value(name, value, "it must be at least 1 and not absurdly large"))
    }

    pub(super) fn value(&self, name: &str, value: impl ToString, rule: &'static str) -> ModelError {
        ModelError::Value { key: self.key(name), value: value.to_string(), rule }
    }

    pub(super) fn unsupported(&self, feature: impl Into<String>) -> ModelError {
        ModelError::Feature { arch: self.arch.to_owned(), feature: feature.into() }
    }

    pub(super) fn has(&self, tensor: &str) -> bool {
        self.checkpoint.tensor(tensor).is_some()
    }

    /// Tokens in use: the model's limit or the cap.
    pub(super) fn context(&self) -> Result<u32, ModelError> {
        let limit = self.size("context_length", u32::MAX)?;
        Ok(self.context_cap.map_or(limit, |cap| cap.min(limit)))
    }

    /// A pre-norm model of one kind of layer, with the common keys; importers change what differs.
    pub(super) fn uniform(&self, ropes: Vec<Rope>, attention: Attention) -> Result<ModelSpec, ModelError> {
        if self.u32("expert_count").unwrap_or(0) > 0 {
            return Err(self.unsupported("experts"));
        }
        let blocks = self.size("block_count", MAX_SIZE)? as usize;
        // Each layer has tensors of its own, which bounds what a damaged count can make us build.
        if blocks > self.checkpoint.tensors.len() {
            return Err(self.value("block_count", blocks, "the file has fewer tensors than that"));
        }
        let width = self.size("embedding_length", MAX_SIZE)? as usize;
        let ffn_width = self.size("feed_forward_length", MAX_SIZE)? as usize;
        let ffn = Ffn { width: ffn_width, act: Activation::Silu, fused: false };
        let layer = LayerSpec { mixer: Mixer::Attention(attention), ffn, residual: Residual::PreNorm };
        Ok(ModelSpec {
            arch: self.arch.to_owned(),
            context: self.context()?,
            norm_eps: self.norm_eps()?,
            embed: Embed { vocab: self.vocab()?, width, scale: 1.0 },
            ropes,
            layers: vec![layer; blocks],
            head: Head { tied: !self.has("output.weight") },
            rope_tensors: Vec::new(),
        })
    }

    fn norm_eps(&self) -> Result<f32, ModelError> {
        let name = "attention.layer_norm_rms_epsilon";
        let eps = self.f32(name).ok_or_else(|| ModelError::Key(self.key(name)))?;
        if eps >= 0.0 { Ok(eps) } else { Err(self.value(name, eps, "it must not be negative")) }
    }

    /// The embedding table decides: `vocab_size` is often missing.
    fn vocab(&self) -> Result<usize, ModelError> {
        let info = self.tensor("token_embd.weight")?;
        let rows = info.shape.first().and_then(|&rows| u32::try_from(rows).ok()).unwrap_or(0);
        if info.shape.len() == 2 && (1..=MAX_SIZE).contains(&rows) {
            return Ok(rows as usize);
        }
        let (name, found) = (info.name.clone(), info.shape.clone());
        Err(ModelError::Shape {
            name,
            found,
            expected: vec![1, u64::from(self.size("embedding_length", MAX_SIZE)?)],
        })
    }

    /// Attention over rope 0 with the common keys and no extras.
    pub(super) fn attention(&self) -> Result<Attention, ModelError> {
        let heads = self.size("attention.head_count", MAX_SIZE)?;
        let kv_key = "attention.head_count_kv";
        if self.checkpoint.metadata.i32s(&self.key(kv_key)).is_some() {
            return Err(self.unsupported("a different number of KV heads per layer"));
        }
        let kv_heads = self.size_or(kv_key, heads, MAX_SIZE)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(self.value(kv_key, kv_heads, "it must divide the number of heads"));
        }
        let head_dim = self.head_dim(heads)?;
        if self.size_or("attention.value_length", head_dim, MAX_HEAD_DIM)? != head_dim {
            return Err(self.unsupported("values of another size than keys"));
        }
        Ok(Attention {
            heads: heads as usize,
            kv_heads: kv_heads as usize,
            head_dim: head_dim as usize,
            qk_norm: false,
            bias: false,
            fused: false,
            window: None,
            scale: (1.0 / f64::from(head_dim).sqrt()) as f32,
            softcap: None,
            rope: 0,
        })
    }

    /// Elements of one head: said by the file, else an equal share of the hidden state.
    fn head_dim(&self, heads: u32) -> Result<u32, ModelError> {
        let name = "attention.key_length";
        if let Some(length) = self.u32(name) {
            return self.in_range(name, length, MAX_HEAD_DIM);
        }
        let width = self.size("embedding_length", MAX_SIZE)?;
        if !width.is_multiple_of(heads) {
            return Err(self.value("attention.head_count", heads, "it must divide the embedding length"));
        }
        self.in_range(name, width / heads, MAX_HEAD_DIM)
    }

    /// Frequencies `base^(-2i / dims) / linear`, with `rope.dimension_count` defaulting to the head size.
    pub(super) fn rope(
        &self,
        layout: RopeLayout,
        head_dim: usize,
        base: f32,
        linear: f32,
    ) -> Result<Rope, ModelError> {
        let name = "rope.dimension_count";
        let dims = self.u32(name).map_or(head_dim, |dims| dims as usize);
        if dims == 0 || dims > head_dim || !dims.is_multiple_of(2) {
            return Err(self.value(name, dims, "it must be even and at most the head size"));
        }
        if base <= 0.0 {
            return Err(self.value("rope.freq_base", base, "it must be above 0"));
        }
        let frequency = |i| f64::from(base).powf(-2.0 * i as f64 / dims as f64) / f64::from(linear);
        let inverse_frequencies = (0..dims / 2).map(|i| frequency(i) as f32).collect();
        Ok(Rope { dims, layout, inverse_frequencies, attn_factor: 1.0 })
    }

    pub(super) fn rope_base(&self) -> f32 {
        self.f32("rope.freq_base").unwrap_or(10_000.0)
    }

    /// Divisor of all frequencies: `rope.scaling.factor` where the type is `linear`.
    pub(super) fn linear_scaling(&self) -> Result<f32, ModelError> {
        let kind = self.checkpoint.metadata.str(&self.key("rope.scaling.type"));
        let name = "rope.scaling.factor";
        let factor = self.f32(name).unwrap_or(1.0);
        match kind {
            // Converters write 0 for a factor that is not in use.
            Some("linear") if factor == 0.0 => Ok(1.0),
            Some("linear") if factor > 0.0 => Ok(factor),
            Some("linear") => Err(self.value(name, factor, "it must not be negative")),
            None | Some("none" | "longrope") => Ok(1.0),
            Some(other) => Err(self.unsupported(format!("rope scaling {other:?}"))),
        }
    }

    /// Divides each frequency of a rope by the tensor's value for it.
    pub(super) fn divide(&self, rope: &mut Rope, tensor: &str) -> Result<(), ModelError> {
        let info = self.tensor(tensor)?;
        let pairs = rope.inverse_frequencies.len();
        if info.shape != [pairs as u64] {
            let (name, found) = (info.name.clone(), info.shape.clone());
            return Err(ModelError::Shape { name, found, expected: vec![pairs as u64] });
        }
        let mut factors = vec![0.0; pairs];
        let bytes = self.checkpoint.data(info);
        let decoded = quant::decode(info.dtype, &bytes, &mut factors);
        decoded.map_err(|error| ModelError::Decode { name: tensor.to_owned(), reason: error.to_string() })?;
        if factors.iter().any(|factor| !factor.is_normal()) {
            let reason = "a factor is zero or no number".to_owned();
            return Err(ModelError::Decode { name: tensor.to_owned(), reason });
        }
        rope.inverse_frequencies.iter_mut().zip(factors).for_each(|(frequency, factor)| *frequency /= factor);
        Ok(())
    }

    fn tensor(&self, name: &str) -> Result<&TensorInfo, ModelError> {
        self.checkpoint.tensor(name).ok_or_else(|| ModelError::Missing(name.to_owned()))
    }
}
