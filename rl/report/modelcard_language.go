package report

import (
	"path/filepath"
	"strings"
	"text/template"

	"github.com/goccy/go-yaml"
)

// LanguageCard is the README.md of a language model or of its adapter.
type LanguageCard struct {
	Name      string // of the model
	Task      string
	Stage     string // a description
	BaseModel string // as for [Card]
	Adapter   bool   // a LoRA adapter; else a full model
	Chat      bool   // the folder has a chat template
	Data      string // one sentence about the training data
	Results   Table  // held-out evaluations
	Settings  []Setting
	Versions  []Setting // frameworks
}

// Markdown returns the text of the card.
func (c LanguageCard) Markdown() (string, error) {
	meta := frontMatter{Library: "transformers", Pipeline: "text-generation", Tags: []string{"rltrain", "generated_from_trainer"}}
	if c.Adapter {
		meta.Library, meta.Tags = "peft", append([]string{"lora"}, meta.Tags...)
	}
	if !filepath.IsAbs(c.BaseModel) && !strings.HasPrefix(c.BaseModel, ".") {
		meta.BaseModel = c.BaseModel
	}
	head, err := yaml.Marshal(meta)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("---\n" + string(head) + "---\n")
	card := template.Must(template.New("card").Funcs(cardFunctions).Parse(languageCardText))
	if err := card.Execute(&b, c); err != nil {
		return "", err
	}
	return b.String(), nil
}

const languageCardText = cardMarker + `

# {{.Name}}

{{if .Adapter}}A LoRA adapter for {{.BaseModel}}{{else}}A language model, fully fine-tuned from {{.BaseModel}}{{end}}. Trained with rltrain on the task {{.Task}}, stage "{{.Stage}}".
{{- with .Data}} {{.}}{{end}}
{{if .Results.Rows}}
## Results

{{table .Results -}}
{{end}}
## Usage

With rltrain, on prompts formatted as in training:

` + "```sh\nrltrain generate --model . --input logs/try.jsonl\n```" + `

With Python, in this folder, after ` + "`pip install torch transformers{{if .Adapter}} peft{{end}}`" + `:

` + "```python" + `
import torch
{{- if .Adapter}}
from peft import PeftModel
{{- end}}
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
{{- if .Adapter}}
base = AutoModelForCausalLM.from_pretrained({{python .BaseModel}})
model = PeftModel.from_pretrained(base, ".").eval()
{{- else}}
model = AutoModelForCausalLM.from_pretrained(".").eval()
{{- end}}
{{- if .Chat}}
messages = [{"role": "user", "content": "Hello"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
{{- else}}
inputs = tokenizer("Hello", return_tensors="pt")
{{- end}}
with torch.no_grad():
    ids = model.generate(**inputs, max_new_tokens=128)
print(tokenizer.decode(ids[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))
` + "```" + `
{{if .Settings}}
## Training

{{settings "setting" "value" .Settings -}}
{{end}}{{if .Versions}}
## Versions

{{settings "framework" "version" .Versions -}}
{{end}}`
