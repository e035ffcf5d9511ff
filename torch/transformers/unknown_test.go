package transformers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestNoFieldOfTransformersIsUnknown parses config.json of every family as transformers saves it.
func TestNoFieldOfTransformersIsUnknown(t *testing.T) {
	configs := map[string]json.RawMessage{}
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join("testdata", "configs.json")))(t), &configs))
	for kind := range families {
		if configs[kind] == nil && !strings.HasPrefix(kind, "renamed_") { // of TestRegisterFamily
			t.Errorf("no configuration of %s", kind)
		}
	}
	for kind, text := range configs {
		c, err := parseConfig(text, families)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		} else {
			expect.Equal(t, []UnknownField(nil), c.Unknown, kind)
		}
	}
}

func TestUnknownFields(t *testing.T) {
	c := mustParse(t, small("llama", `,"_private":1,"dropout":0.1,"use_qk_norm":false,"favourite_colour":"red","attention_sinks":0`))
	expect.Equal(t, []UnknownField{
		{"attention_sinks", "0", false}, {"favourite_colour", `"red"`, false}, {"use_qk_norm", "false", false},
	}, c.Unknown)
	_, err := parseConfig([]byte(small("llama", `,"favourite_colour":"red","use_qk_norm":true`)), decoders)
	expect.Error(t, err, `use_qk_norm true is not a field that is known for model_type "llama"`)
}
