package lora_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/safetensors"
)

func TestInUse(t *testing.T) {
	for _, test := range []struct {
		text string
		want map[string]string
	}{
		{`{}`, map[string]string{}},
		{
			`{"r": 8, "bias": "none", "use_dora": false, "init_lora_weights": true, "rank_pattern": {}, "modules_to_save": null,
			"peft_version": "0.21.2", "inference_mode": true, "target_modules": ["q_proj", "v_proj"]}`,
			map[string]string{"r": "8", "target_modules": `["q_proj","v_proj"]`},
		},
		{
			`{"bias": "all", "use_dora": true, "init_lora_weights": "pissa", "rank_pattern": {"q_proj": 4}}`,
			map[string]string{"bias": `"all"`, "use_dora": "true", "init_lora_weights": `"pissa"`, "rank_pattern": `{"q_proj":4}`},
		},
	} {
		dir := t.TempDir()
		must.Do(t, os.WriteFile(filepath.Join(dir, lora.ConfigFile), []byte(test.text), 0o644))
		expect.Equal(t, test.want, must.Get(lora.InUse(dir))(t), test.text)
	}
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, lora.ConfigFile), []byte("[1]"), 0o644))
	_, err := lora.InUse(dir)
	expect.True(t, err != nil, "a list was read as a config")
}

func TestTensorNames(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, safetensors.Write(filepath.Join(dir, lora.WeightsFile), []safetensors.Tensor{
		safetensors.FromFloat32s("b", []int64{2, 3}, make([]float32, 6)), safetensors.FromFloat32s("a", []int64{5}, make([]float32, 5)),
	}, nil))
	names, elements, err := lora.TensorNames(dir)
	expect.True(t, err == nil && elements == 11 && len(names) == 2, "%v with %d elements, %v", names, elements, err)
}
