package transformers

import (
	"math"
	"math/bits"
	"strings"

	"github.com/rltrain/rltrain/torch"
)

// distanceWeight is the core's name of a table of distances, which files have by buckets.
const distanceWeight = "distances.weight"

// mpnetBuckets are the buckets of MPNet, whatever relative_attention_num_buckets says.
const mpnetBuckets = 32

// mpnetFields reads MPNet's fields: each head adds a bias by the bucket of a distance to its scores.
func mpnetFields(f *fields, c *Config) {
	c.distanceRows = f.size("relative_attention_num_buckets", mpnetBuckets, 1<<16)
	if c.distanceRows < mpnetBuckets {
		f.fail("relative_attention_num_buckets %d is not supported, want %d or more", c.distanceRows, mpnetBuckets)
	}
	if c.PadTokenID != 1 {
		f.fail("pad_token_id %d is not supported: positions begin after token 1", c.PadTokenID)
	}
	c.core.Distance = torch.DistanceBias
	c.bucketOf = mpnetBucket
}

// mpnetBucket is the bucket for a query at i and a key at i - distance (Raffel 2020, section 2.1): half of the buckets are for
// later keys, half of each for single distances, and the rest up to 128 are logarithmic.
func mpnetBucket(distance int) int {
	const half, single, most = mpnetBuckets / 2, mpnetBuckets / 4, 128
	first, n := 0, distance
	if n < 0 {
		first, n = half, -n
	}
	if n < single {
		return first + n
	}
	far := math.Log(float64(n)/single) / math.Log(float64(most)/single) * (half - single)
	return first + min(single+int(far), half-1)
}

// jinaBert reads the fields of jina v2's encoders: scores fall with the distance, each head's by its slope (ALiBi, Press 2022).
func jinaBert(f *fields, c *Config) {
	absent := map[string]string{"jina_bert": "original", "jina_bert_code": "geglu"}[c.ModelType]
	kind := text(f, "feed_forward_type", absent)
	c.HiddenAct = map[string]string{"geglu": "gelu", "reglu": "relu"}[kind]
	if c.HiddenAct == "" {
		f.fail("feed_forward_type %.40q is not supported, want \"geglu\" or \"reglu\"", kind)
	}
	if c.MaxPositionEmbeddings > 1<<16 {
		f.fail("max_position_embeddings %d is not supported with ALiBi, want at most %d", c.MaxPositionEmbeddings, 1<<16)
	}
	c.core.Activation, c.core.Distance = activations[c.HiddenAct], torch.DistanceBias
	c.slopes = alibiSlopes(c.NumAttentionHeads)
}

// alibiSlopes are powers of 2 that fall evenly to 2^-8, if heads is a power of 2. Else the heads beyond the largest one in it have
// every other slope of twice as many.
func alibiSlopes(heads int) []float64 {
	n := 1 << (bits.Len(uint(heads)) - 1)
	slopes := make([]float64, heads)
	for i := range slopes {
		exponent := float64(i + 1)
		if i >= n {
			exponent = float64(i-n) + 0.5
		}
		slopes[i] = math.Exp2(-8 * exponent / float64(n))
	}
	return slopes
}

// alibi is the core's table of biases, which no file has.
func (c *Config) alibi() (*torch.Var, error) {
	far := c.MaxPositionEmbeddings - 1
	table := make([]float32, 0, len(c.slopes)*(2*far+1))
	for _, slope := range c.slopes {
		for distance := -far; distance <= far; distance++ {
			table = append(table, -float32(slope)*float32(max(distance, -distance)))
		}
	}
	return torch.Constant(table, int64(len(c.slopes)), int64(2*far+1))
}

// debertaFields reads DeBERTa v2's and v3's fields: queries and keys are compared with those of distances too (He 2021).
func debertaFields(f *fields, c *Config) {
	kinds := []string{}
	if raw := f.raw["pos_att_type"]; len(raw) > 0 && raw[0] == '[' {
		kinds = value(f, "pos_att_type", kinds)
	} else {
		kinds = strings.Split(strings.ToLower(text(f, "pos_att_type", "")), "|")
	}
	both := map[string]bool{}
	for _, kind := range kinds {
		both[strings.TrimSpace(kind)] = true
	}
	if !value(f, "relative_attention", false) || !value(f, "share_att_key", false) || !both["c2p"] || !both["p2c"] {
		f.fail("only relative_attention true, share_att_key true and pos_att_type \"c2p|p2c\" are supported")
	}
	for _, key := range []string{"embedding_size", "pooler_hidden_size"} {
		if n := value(f, key, c.HiddenSize); n != c.HiddenSize {
			f.fail("%s %d is not supported, want hidden_size %d", key, n, c.HiddenSize)
		}
	}
	if n := value(f, "conv_kernel_size", 0); n > 0 {
		f.fail("conv_kernel_size %d is not supported", n)
	}
	if n := value(f, "attention_head_size", c.HeadDim); n != c.HeadDim {
		f.fail("attention_head_size %d is not supported, want %d", n, c.HeadDim)
	}
	c.ClassifierActivation = text(f, "pooler_hidden_act", "gelu")
	if headActivations[c.ClassifierActivation] == nil {
		f.fail("pooler_hidden_act %.40q is not supported, want \"gelu\", \"relu\", \"silu\" or \"tanh\"", c.ClassifierActivation)
	}
	c.withoutPositions = !value(f, "position_biased_input", true)
	if f.has("type_vocab_size") && value(f, "type_vocab_size", 0) > 0 {
		c.TypeVocabSize = f.size("type_vocab_size", 1, 1<<16)
	}
	c.normedDistances = strings.Contains(strings.ToLower(text(f, "norm_rel_ebd", "none")), "layer_norm")
	longest, buckets := value(f, "max_relative_positions", -1), value(f, "position_buckets", -1)
	if longest < 1 {
		longest = c.MaxPositionEmbeddings
	}
	span := longest
	if buckets > 0 {
		span = buckets
	}
	if f.err == nil && (span > maxPositions || buckets > 0 && longest-1 <= buckets/2) {
		f.fail("position_buckets %d do not fit %d positions", buckets, longest)
	}
	c.distanceRows = 2 * span
	c.bucketOf = func(distance int) int { return min(max(debertaBucket(distance, buckets, longest)+span, 0), 2*span-1) }
	c.core.Distance, c.core.TokenTypes = torch.DistanceContent, c.TypeVocabSize
	c.core.AttentionScale = 1 / math.Sqrt(float64(3*c.HeadDim))
}

// debertaBucket is the bucket of a distance: itself up to half of the buckets, logarithmic from there to the longest.
func debertaBucket(distance, buckets, longest int) int {
	half := buckets / 2
	n := max(distance, -distance)
	if buckets < 1 || n <= half {
		return distance
	}
	far := int(math.Ceil(math.Log(float64(n)/float64(half))/math.Log(float64(longest-1)/float64(half))*float64(half-1))) + half
	if distance < 0 {
		return -far
	}
	return far
}

// spreadDistances replaces the table by buckets in weights, and the norm of its rows, by the core's table by distances; or adds that
// of ALiBi.
func (c *Config) spreadDistances(weights map[string]*torch.Var) (err error) {
	if c.slopes != nil {
		weights[distanceWeight], err = c.alibi()
		return err
	}
	table := weights[distanceWeight]
	if table == nil {
		return nil
	}
	norm := Dense{weights["distances_norm.weight"], weights["distances_norm.bias"]}
	delete(weights, "distances_norm.weight")
	delete(weights, "distances_norm.bias")
	defer norm.Close()
	defer table.Close()
	var values []float32 // [buckets, width]
	err = torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		x := table.T()
		if norm.Weight != nil {
			x = s.LayerNorm(x, norm.Weight.T(), norm.Bias.T(), c.LayerNormEps)
		}
		values = s.Read(x)
		return nil
	})
	if err != nil {
		return err
	}
	far, width := c.MaxPositionEmbeddings-1, len(values)/c.distanceRows
	spread := make([]float32, 0, (2*far+1)*width)
	for distance := -far; distance <= far; distance++ {
		bucket := c.bucketOf(distance)
		spread = append(spread, values[bucket*width:(bucket+1)*width]...)
	}
	shape := []int64{int64(2*far + 1), int64(width)}
	if c.core.Distance == torch.DistanceBias { // by heads
		spread = transpose(spread, 2*far+1, width)
		shape[0], shape[1] = shape[1], shape[0]
	}
	weights[distanceWeight], err = torch.Constant(spread, shape...)
	return err
}
