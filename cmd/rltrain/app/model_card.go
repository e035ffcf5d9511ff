package app

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl/policy"
)

// modelCard is README.md of a full language model: its base model, its name, and how to use it.
const modelCard = `---
%slibrary_name: transformers
pipeline_tag: text-generation
tags:
- rltrain
---

# %s

A full model written by [rltrain](https://github.com/rltrain/rltrain) from %s%s.

` + "```python" + `
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForCausalLM.from_pretrained(".")
` + "```" + `

` + "```sh" + `
rltrain chat --model .
vllm serve .
` + "```" + `
`

// writeModelCard writes README.md into the folder of a full language model. The front matter names the base model if that is
// on the Hub: a path means nothing elsewhere.
func writeModelCard(dir string, p *policy.CausalLM) error {
	path, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	front, merged := "", ""
	if p.Adapted() {
		merged = ", with the trained adapter merged"
	}
	if name := p.BaseModel; strings.Count(name, "/") == 1 && !filepath.IsAbs(name) {
		front = "base_model: " + name + "\n"
	}
	return outfile.Write(filepath.Join(dir, "README.md"), fmt.Appendf(nil, modelCard, front, filepath.Base(path), "`"+filepath.Base(p.BaseModel)+"`", merged), 0o644)
}
