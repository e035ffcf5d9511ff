package report

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/goccy/go-yaml"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
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

// String formats the table for a terminal.
func (t Table) String() string { return RenderTable(t.Headers, t.Rows) }

// Setting is a name and its value.
type Setting struct{ Name, Value string }

// Settings are those of the text of a config.yaml.
func Settings(text []byte) (settings []Setting) {
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && !strings.HasPrefix(key, "#") {
			value, _, _ = strings.Cut(value, "  # ") // the comment names its source
			settings = append(settings, Setting{Name: key, Value: value})
		}
	}
	return settings
}

// Wide reports whether the setting takes a full line of a page.
func (s Setting) Wide() bool { return len(s.Value) > 26 }

// Card is the README.md of a model: of a classifier if it has labels, else of a language model.
type Card struct {
	Name string // of the model
	// BaseModel is a Hugging Face model id or a folder. The metadata omits a folder (absolute, or starting with "."),
	// because its readers expect an id.
	BaseModel   string
	Adapter     bool   // a LoRA adapter; else a full model
	Merged      bool   // a full model that holds the weights of an adapter
	Task, Stage string // of the training run; empty for a merged or exported model
	Data        string // one sentence about the training data
	Results     Table  // held-out evaluations
	Settings    []Setting
	Versions    []Setting // frameworks

	Chat bool // language model: the folder has a chat template

	Labels []string // classifier
	// Pooling of a classifier is "mean" (for AutoModel, and head.safetensors), "family" (for
	// AutoModelForSequenceClassification), "last" or "score".
	Pooling   string
	MaxLength int // classifier: tokens; longer texts are truncated
}

// Scores reports whether the model is a reward model, whose one output is a score and no class.
func (c Card) Scores() bool { return len(c.Labels) == 1 }

// frontMatter is the metadata that Hugging Face reads. It has no license: users choose theirs.
type frontMatter struct {
	BaseModel string   `yaml:"base_model,omitempty"`
	Library   string   `yaml:"library_name"`
	Pipeline  string   `yaml:"pipeline_tag"`
	Tags      []string `yaml:"tags"`
}

// WriteCard writes dir/README.md. It keeps an existing README.md without cardPrefix; then written is false.
func WriteCard(dir string, card Card) (written bool, err error) {
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

// The texts of cards.
var (
	//go:embed card_classifier.md
	classifierCard string
	//go:embed card_language.md
	languageCard string
)

// Markdown returns the text of the card.
func (c Card) Markdown() (string, error) {
	meta := frontMatter{Library: "transformers", Pipeline: "text-generation", Tags: []string{"rltrain", "generated_from_trainer"}}
	text := languageCard
	if c.Labels != nil {
		meta.Pipeline, text = "text-classification", classifierCard
	}
	if c.Adapter {
		meta.Library, meta.Tags = "peft", append([]string{"lora"}, meta.Tags...)
	}
	if !filepath.IsAbs(c.BaseModel) && !strings.HasPrefix(c.BaseModel, ".") {
		meta.BaseModel = c.BaseModel
		if c.Adapter {
			meta.Tags = append([]string{"base_model:adapter:" + c.BaseModel}, meta.Tags...)
		}
	}
	head, err := yaml.Marshal(meta)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("---\n" + string(head) + "---\n" + cardMarker + "\n\n")
	// Parsed on use, so that --help stays fast.
	card := template.Must(template.New("card").Funcs(cardFunctions).Parse(text))
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
	text, err := files.EncodeLine(s)
	return string(text), err
}
