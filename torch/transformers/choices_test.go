package transformers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

const modernConfig = `{
  "model_type": "modernbert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 5, "num_attention_heads": 2,
  "intermediate_size": 6, "max_position_embeddings": 64, "pad_token_id": 0, "position_embedding_type": "absolute"
}`

func TestModernBertBlocks(t *testing.T) {
	for name, tc := range map[string]struct {
		from, to        string
		windows, ropeOf []int
	}{
		"defaults":    {"{", "{", []int{0, 65, 65, 0, 65}, []int{0, 1, 1, 0, 1}},
		"an odd band": {"{", `{"local_attention": 9, "global_attn_every_n_layers": 2,`, []int{0, 5, 0, 5, 0}, []int{0, 1, 0, 1, 0}},
		"all global":  {"{", `{"global_attn_every_n_layers": 1,`, nil, []int{0, 0, 0, 0, 0}},
		"by layer": {
			"{", `{"layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention", "sliding_attention"],`,
			[]int{65, 0, 0, 0, 65}, []int{1, 0, 0, 0, 1},
		},
	} {
		c, err := parseConfig([]byte(swap(t, modernConfig, tc.from, tc.to)), encoders)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		expect.Equal(t, tc.windows, c.core.Windows, fmt.Sprintf("%s: windows", name))
		expect.Equal(t, tc.ropeOf, c.core.RopeOf, fmt.Sprintf("%s: ropes", name))
		w := c.core.Ropes
		expect.True(t, len(w) == 2 && w[0].InvFreq[1] == 1/400.0 && w[1].InvFreq[1] == 1/100.0, "%s: ropes %+v", name, w)
	}
}

func TestModernBertRefuses(t *testing.T) {
	for _, tt := range []struct{ from, to, want string }{
		{"{", `{"classifier_pooling": "max",`, `classifier_pooling "max" is not supported`},
		{"{", `{"classifier_activation": "gelu_new",`, `classifier_activation "gelu_new" is not supported`},
		{"{", `{"hidden_activation": "mish",`, `hidden_activation "mish" is not supported`},
		{"{", `{"norm_eps": 2,`, "norm_eps 2 is not between"},
		{"{", `{"local_attention": 0,`, "local_attention 0 is not between"},
		{"{", `{"global_attn_every_n_layers": 0,`, "global_attn_every_n_layers 0 is not between"},
		{"{", `{"layer_types": ["full_attention"],`, "layer_types has 1 entries"},
		{"{", `{"rope_scaling": {"type": "linear", "factor": 2},`, "rope_scaling is not supported"},
		{"{", `{"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2}},`, `rope_type "dynamic" is not supported`},
		{"{", `{"rope_parameters": {"rope_theta": 5},`, "want full_attention and sliding_attention"},
		{"{", `{"global_rope_theta": -1,`, "global_rope_theta -1 is not above 0"},
		{"{", `{"norm_bias": 1,`, "norm_bias: 1 is not a boolean"},
		{`"pad_token_id": 0`, `"norm_bias": true`, "pad_token_id 50283 is outside the vocabulary of 30"},
		{`"num_attention_heads": 2`, `"num_attention_heads": 8`, "would rotate, want an even number"},
	} {
		_, err := parseConfig([]byte(swap(t, modernConfig, tt.from, tt.to)), encoders)
		expect.True(t, err != nil && strings.Contains(err.Error(), tt.want) && !strings.Contains(err.Error(), "\n"), "%s: error %v, want %q", tt.to, err, tt.want)
	}
}
