// Package decision has the questions, prompts and answers of decision models, as transformers 5.23 has them: a model reads
// a state and typed questions about it, and answers each with a probability for every option, without generating text.
package decision

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/torch/transformers/chat"
)

// The files of a decision model, beside its weights.
const (
	ConfigFile   = "decision.json"
	TemplateFile = "decision_template.jinja"
)

// maxFile limits the size of these files, in bytes.
const maxFile = 1 << 20

// Types of questions.
const (
	Noul   = "noul"   // true or false
	Choice = "choice" // one of named options
	Score  = "score"  // one of ordered levels
)

// types are all of them, in the order of messages.
var types = []string{Noul, Choice, Score}

// Config has the settings of a decision model. The zero Config asks any chat model.
type Config struct {
	// Labels are the texts of one token that stand for the options of a type of question; without them Yes and No for
	// noul, else A to Z.
	Labels map[string][]string `json:"labels,omitempty"`
	// Temperature divides the logits of the labels of a type of question; without it 1.
	Temperature map[string]float64 `json:"temperature,omitempty"`
	// NoulOptions are "true" and "false" in the order of their labels; without it true first.
	NoulOptions []string `json:"noul_options,omitempty"`
	// Sanitize tells whether control tokens in a request become text; without it they do.
	Sanitize *bool `json:"sanitize_control_tokens,omitempty"`
	// Adapter is a folder of the model's with a LoRA adapter; "" has none, and others are refused.
	Adapter string `json:"adapter,omitempty"`

	template *chat.Templates // nil for the general prompt
	together bool            // the template has all questions in one prompt
}

// Load reads the settings in a model's folder; found is whether it has any. Fields of other versions are ignored, as
// transformers does.
func Load(dir string) (c Config, found bool, err error) {
	path := filepath.Join(dir, ConfigFile)
	text, err := read(path)
	if err != nil {
		return c, false, err
	}
	if text != "" {
		if err = json.Unmarshal([]byte(text), &c); err == nil {
			err = c.check()
		}
		if err != nil {
			return c, true, fmt.Errorf("%s: %w", path, err)
		}
	}
	path = filepath.Join(dir, TemplateFile)
	template, err := read(path)
	if err != nil || template == "" {
		return c, text != "", err
	}
	if err := c.SetTemplate(template); err != nil {
		return c, true, fmt.Errorf("%s: %w", path, err)
	}
	return c, true, nil
}

// read is the text of a file; "" if there is none.
func read(path string) (string, error) {
	f, err := smallfile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("more than %d bytes", maxFile)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return string(data), nil
}

func (c *Config) check() error {
	for _, kind := range slices.Concat(slices.Sorted(maps.Keys(c.Labels)), slices.Sorted(maps.Keys(c.Temperature))) {
		if !slices.Contains(types, kind) {
			return fmt.Errorf("%q is not a type of question; use %s", kind, strings.Join(types, ", "))
		}
	}
	for kind, t := range c.Temperature {
		if !(t > 0) || math.IsInf(t, 0) {
			return fmt.Errorf("temperature.%s is %v; it must be above 0", kind, t)
		}
	}
	if c.Adapter != "" {
		return fmt.Errorf("adapter %q: an adapter in a folder of the model's is not loaded; load that folder as an adapter, and write null here", c.Adapter)
	}
	if n := c.NoulOptions; n != nil && !slices.Equal(slices.Sorted(slices.Values(n)), []string{"false", "true"}) {
		return fmt.Errorf("noul_options is %q; it must order \"true\" and \"false\"", n)
	}
	return nil
}

func (c *Config) sanitizes() bool { return c.Sanitize == nil || *c.Sanitize }

// options are those of a noul question in the order of its labels.
func (c *Config) options() []string {
	if c.NoulOptions == nil {
		return []string{"true", "false"}
	}
	return c.NoulOptions
}

// labels are those of a type of question, as many as there may be options.
func (c *Config) labels(kind string) []string {
	switch {
	case len(c.Labels[kind]) > 0:
		return c.Labels[kind]
	case kind == Noul:
		return []string{"Yes", "No"}
	}
	return strings.Split(letters, "")
}

const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// TemperatureOf divides the logits of a question's labels.
func (c *Config) TemperatureOf(kind string) float64 {
	if t, ok := c.Temperature[kind]; ok {
		return t
	}
	return 1
}
