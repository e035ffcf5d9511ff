package report

import (
	"bytes"
	"errors"
	"fmt"
	"github.com/rltrain/rltrain/internal/outfile"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/goccy/go-yaml"
)

// cardMarker marks a model card that rltrain may overwrite; cards of all versions contain cardPrefix.
const (
	cardPrefix = "<!-- rltrain "
	cardMarker = cardPrefix + "overwrites this file on every save. Remove this line to keep your changes. -->"
)

// Table is a table of a model card or report.
type Table struct {
	Headers []string
	Rows    [][]string
}

// Setting is a name and its value.
type Setting struct{ Name, Value string }

// Wide reports whether the setting takes a full line of a page.
func (s Setting) Wide() bool { return len(s.Value) > 26 }

// Card is the README.md of a classifier's adapter.
type Card struct {
	Name  string // of the model
	Stage string // "supervised", "rl", or a description
	// BaseModel is a Hugging Face model id or a folder. The metadata omits a folder (absolute, or starting with "."),
	// because its readers expect an id.
	BaseModel string
	// Pooling is "mean" (adapter for AutoModel, and head.safetensors), "family" (adapter and head for
	// AutoModelForSequenceClassification), "last" or "score".
	Pooling   string
	MaxLength int // tokens; longer texts are truncated
	Labels    []string
	Datasets  []string // Hugging Face data set ids; may be empty
	Data      string   // one sentence about the training data
	Results   Table    // metrics of each stage on held-out rows
	Settings  []Setting
	Metrics   []Setting // at the end of training
	Versions  []Setting // frameworks
}

// frontMatter is the metadata that Hugging Face reads. It has no license: users choose theirs.
type frontMatter struct {
	BaseModel string   `yaml:"base_model,omitempty"`
	Library   string   `yaml:"library_name"`
	Pipeline  string   `yaml:"pipeline_tag"`
	Tags      []string `yaml:"tags"`
	Datasets  []string `yaml:"datasets,omitempty"`
}

// WriteCard writes dir/README.md. It keeps an existing README.md without cardPrefix; then written is false.
func WriteCard(dir string, card interface{ Markdown() (string, error) }) (written bool, err error) {
	path := filepath.Join(dir, "README.md")
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("model card: %w", err)
	}
	if err == nil && !bytes.Contains(old, []byte(cardPrefix)) {
		return false, nil
	}
	text, err := card.Markdown()
	if err != nil {
		return false, fmt.Errorf("model card %s: %w", path, err)
	}
	return true, outfile.Write(path, []byte(text), 0o644)
}

// Markdown returns the text of the card. An unknown Pooling or a MaxLength below 1 is an error.
func (c Card) Markdown() (string, error) {
	if !slices.Contains([]string{"mean", "family", "last", "score"}, c.Pooling) {
		return "", fmt.Errorf("pooling %q is not one of mean, family, last, score", c.Pooling)
	}
	if c.MaxLength < 1 {
		return "", fmt.Errorf("max length %d tokens is below 1", c.MaxLength)
	}
	meta := frontMatter{
		Library: "peft", Pipeline: "text-classification",
		Tags: []string{"lora", "rltrain", "generated_from_trainer"}, Datasets: c.Datasets,
	}
	if !filepath.IsAbs(c.BaseModel) && !strings.HasPrefix(c.BaseModel, ".") {
		meta.BaseModel = c.BaseModel
		meta.Tags = append([]string{"base_model:adapter:" + c.BaseModel}, meta.Tags...)
	}
	head, err := yaml.Marshal(meta)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("---\n" + string(head) + "---\n")
	// Parsed on use, so that --help stays fast.
	card := template.Must(template.New("card").Funcs(cardFunctions).Parse(cardText))
	if err := card.Execute(&b, c); err != nil {
		return "", err
	}
	return b.String(), nil
}

var cardFunctions = template.FuncMap{
	"table":    func(t Table) string { return MarkdownTable(t.Headers, t.Rows) },
	"settings": settingsTable,
	"join":     strings.Join,
	"python":   pythonString,
}

func settingsTable(name, value string, settings []Setting) string {
	rows := make([][]string, len(settings))
	for i, s := range settings {
		rows[i] = []string{s.Name, s.Value}
	}
	return MarkdownTable([]string{name, value}, rows)
}

// pythonString quotes s for Python, whose string escapes include JSON's.
func pythonString(s string) (string, error) {
	text, err := encodeJSON(s)
	return string(text), err
}

const cardText = cardMarker + `

# {{.Name}}

A LoRA adapter for {{.BaseModel}} that classifies texts into {{len .Labels}} classes. Trained with rltrain, stage "{{.Stage}}".
{{- with .Data}} {{.}}{{end}}

Classes: {{join .Labels ", "}}.
{{if .Results.Rows}}
## Results

{{table .Results -}}
{{end}}
## Usage

With rltrain, one text per line:

` + "```sh\nrltrain predict --model . < texts.txt\n```" + `

{{if eq .Pooling "score" -}}
The model scores each class by the probability of its name after the prompt in label_policy.json.
{{else -}}
With Python, in this folder, after ` + "`pip install torch transformers peft safetensors`" + `:

` + "```python" + `
import json
import torch
from peft import PeftModel
{{- if eq .Pooling "mean"}}
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
base = AutoModel.from_pretrained({{python .BaseModel}})
model = PeftModel.from_pretrained(base, ".").eval()
head = load_file("head.safetensors")  # head.weight [C, H], head.bias [C]
{{- else}}
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
base = AutoModelForSequenceClassification.from_pretrained({{python .BaseModel}}, num_labels={{len .Labels}})
{{- if eq .Pooling "last"}}
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
tokenizer.padding_side = "right"
base.config.pad_token_id = tokenizer.pad_token_id  # the last token that is none is read
{{- end}}
model = PeftModel.from_pretrained(base, ".").eval()
{{- end}}
with open("category_mapping.json", encoding="utf-8") as f:
    labels = json.load(f)["idx_to_category"]

texts = ["Which enzyme unwinds DNA?"]
batch = tokenizer(texts, padding=True, truncation=True, max_length={{.MaxLength}}, return_tensors="pt")
with torch.no_grad():
{{- if eq .Pooling "mean"}}
    hidden = model(**batch).last_hidden_state  # [S, T, H]
    mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    pooled = (hidden * mask).sum(1) / mask.sum(1)  # mean over tokens, not normalised
    logits = pooled @ head["head.weight"].T + head["head.bias"]
{{- else}}
    logits = model(**batch).logits
{{- end}}
for text, p in zip(texts, logits.softmax(-1)):
    print(labels[str(int(p.argmax()))], round(float(p.max()), 4), text)
` + "```" + `
{{end -}}
{{if .Settings}}
## Training

{{settings "setting" "value" .Settings -}}
{{end}}{{if .Metrics}}
At the end of training:

{{settings "metric" "value" .Metrics -}}
{{end}}{{if .Versions}}
## Versions

{{settings "framework" "version" .Versions -}}
{{end}}`
