package convert

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/torch/gguf"
)

// An architecture maps the names and values of a GGUF general.architecture.
type architecture struct {
	modelType, class string            // of config.json
	modules          map[string]string // within a layer: GGUF's name to that of transformers
	// interleaved: llama.cpp rotates neighbouring features, transformers features half a head apart. The rows of query
	// and key weights are in llama.cpp's order.
	interleaved bool
	// plusOne: norms are stored as 1 + w.
	plusOne bool
}

var attention = map[string]string{
	"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
	"attn_output": "self_attn.o_proj",
}

var gated = map[string]string{
	"ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}

var headNorms = map[string]string{"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}

var gemmaNorms = map[string]string{
	"ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
}

// joined merges tables; later ones win.
func joined(tables ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, table := range tables {
		maps.Copy(all, table)
	}
	return all
}

// architectures by general.architecture.
var architectures = map[string]architecture{
	"llama": {modelType: "llama", class: "LlamaForCausalLM", modules: joined(attention, gated), interleaved: true},
	"qwen2": {modelType: "qwen2", class: "Qwen2ForCausalLM", modules: joined(attention, gated)},
	"qwen3": {modelType: "qwen3", class: "Qwen3ForCausalLM", modules: joined(attention, gated, headNorms)},
	"phi3": {modelType: "phi3", class: "Phi3ForCausalLM", modules: map[string]string{
		"attn_norm": "input_layernorm", "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
		"ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj",
	}},
	"gemma2": {modelType: "gemma2", class: "Gemma2ForCausalLM", modules: joined(attention, gated, gemmaNorms), plusOne: true},
	"gemma3": {modelType: "gemma3_text", class: "Gemma3ForCausalLM", modules: joined(attention, gated, gemmaNorms, headNorms), plusOne: true},
}

// architectureOf returns the architecture of a file, and its name.
func architectureOf(f *gguf.File) (architecture, string, error) {
	const key = "general.architecture"
	name, ok, err := f.Text(key)
	if err != nil {
		return architecture{}, "", err
	}
	if !ok {
		return architecture{}, "", fmt.Errorf("%s is missing: the file holds no language model", key)
	}
	a, ok := architectures[name]
	if !ok {
		return a, name, fmt.Errorf("%s %.40q is not supported, want one of %s", key, name, strings.Join(slices.Sorted(maps.Keys(architectures)), ", "))
	}
	return a, name, nil
}

const (
	embedding  = "token_embd.weight"
	outputHead = "output.weight"
)

// topNames are the tensors outside of the layers.
var topNames = map[string]string{
	embedding: "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", outputHead: "lm_head.weight",
}

// Tensors with divisors of RoPE frequencies, which are part of the configuration.
const (
	RopeFactors  = "rope_freqs.weight"
	LongFactors  = "rope_factors_long.weight"
	ShortFactors = "rope_factors_short.weight"
)

// name returns transformers' name of a tensor, "" for one that model folders do not have.
func (a architecture) name(tensor string) (string, error) {
	if name, ok := topNames[tensor]; ok {
		return name, nil
	}
	if tensor == RopeFactors || tensor == LongFactors || tensor == ShortFactors {
		return "", nil
	}
	parts := strings.Split(tensor, ".")
	if len(parts) == 4 && parts[0] == "blk" && (parts[3] == "weight" || parts[3] == "bias") {
		layer, err := strconv.Atoi(parts[1])
		if module, ok := a.modules[parts[2]]; ok && err == nil && layer >= 0 {
			return fmt.Sprintf("model.layers.%d.%s.%s", layer, module, parts[3]), nil
		}
	}
	return "", fmt.Errorf("tensor %.120q is not one of a %s model", tensor, a.modelType)
}

// A Weight is a tensor of a GGUF file as in a model folder.
type Weight struct {
	Name   string // in transformers
	Tensor gguf.Tensor
	// Heads, if positive, is the number of heads within which the rows are interleaved; see [Interleaved].
	Heads int
	// Shift is added to the stored values.
	Shift float32
}

// Weights lists the weights of a model under transformers' names.
func Weights(f *gguf.File) ([]Weight, error) {
	list, err := weights(f)
	if err != nil {
		return nil, fmt.Errorf("gguf: %s: %w", f.Path(), err)
	}
	return list, nil
}

func weights(f *gguf.File) ([]Weight, error) {
	a, arch, err := architectureOf(f)
	if err != nil {
		return nil, err
	}
	m := &metadata{file: f, arch: arch}
	heads := m.size("attention.head_count", 0)
	kvHeads := m.size("attention.head_count_kv", heads)
	if m.err != nil {
		return nil, m.err
	}
	var list []Weight
	for _, t := range f.Tensors() {
		w := Weight{Tensor: t}
		if w.Name, err = a.name(t.Name); err != nil {
			return nil, err
		}
		if w.Name == "" {
			continue
		}
		if a.interleaved {
			w.Heads = interleavedHeads(t.Name, heads, kvHeads)
		}
		if w.Heads > 0 && t.Shape[0]%int64(2*w.Heads) != 0 {
			return nil, fmt.Errorf("tensor %s has %d rows, want an even number for each of %d heads", t.Name, t.Shape[0], w.Heads)
		}
		if a.plusOne && strings.HasSuffix(t.Name, "norm.weight") {
			w.Shift = -1
		}
		list = append(list, w)
	}
	return list, nil
}

// interleavedHeads is the number of heads of a query or key tensor, 0 for others.
func interleavedHeads(tensor string, heads, kvHeads int) int {
	switch {
	case strings.Contains(tensor, ".attn_q."):
		return heads
	case strings.Contains(tensor, ".attn_k."):
		return kvHeads
	}
	return 0
}

// Interleaved maps a row of transformers' weight, which has rows rows, to its row in the GGUF tensor: llama.cpp
// alternates between the two halves of a head.
func Interleaved(row, rows, heads int) int {
	d := rows / heads
	head, i := row/d, row%d
	return head*d + i%(d/2)*2 + i/(d/2)
}

// Rows puts the rows of stored data, each with the same number of bytes, into transformers' order. It returns data
// itself if the order is the same.
func (w Weight) Rows(data []byte) []byte {
	if w.Heads == 0 {
		return data
	}
	rows := int(w.Tensor.Shape[0])
	width := len(data) / rows
	ordered := make([]byte, 0, len(data))
	for row := range rows {
		ordered = append(ordered, data[Interleaved(row, rows, w.Heads)*width:][:width]...)
	}
	return ordered
}
