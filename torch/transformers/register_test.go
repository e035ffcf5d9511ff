package transformers

import (
	"reflect"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestRegisterFamily(t *testing.T) {
	RegisterFamily("renamed_llama", "llama", map[string]string{"hidden_size": "width"})
	config := `{"model_type": "llama", "vocab_size": 8, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}`
	want := must.Get(parseConfig([]byte(config), decoders))(t)
	got := must.Get(parseConfig([]byte(strings.NewReplacer(`"llama"`, `"renamed_llama"`, "hidden_size", "width").Replace(config)), decoders))(t)
	expect.True(t, got.HiddenSize == want.HiddenSize && reflect.DeepEqual(got.Core(), want.Core()),
		"got %+v, want %+v", got.Core(), want.Core())
	for _, wrong := range [][2]string{{"llama", "llama"}, {"", "llama"}, {"other", "lama"}} {
		expect.Panic(t, func() { RegisterFamily(wrong[0], wrong[1], nil) })
	}
}
