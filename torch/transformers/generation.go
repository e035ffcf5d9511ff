package transformers

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/smallfile"
)

// GenerationConfig is generation_config.json: the tokens that end a text and the sampling settings that the model's
// authors recommend. The settings are defaults for generate, chat and serve; training samples from the model's own
// distribution.
type GenerationConfig struct {
	EOS               []int32 // nil if missing
	BOS, Pad          int32   // -1 if missing
	DoSample          bool
	Temperature       float64 // 1 if missing
	TopK              int     // 0: off
	TopP, MinP        float64 // TopP 1, MinP 0: off
	RepetitionPenalty float64 // 1: off
}

// Sampling are the settings that change how tokens are sampled, as name=value; "" if there are none.
func (g GenerationConfig) Sampling() string {
	var all []string
	for _, one := range []struct {
		name       string
		value, off float64
	}{
		{"temperature", g.Temperature, 1}, {"top_k", float64(g.TopK), 0}, {"top_p", g.TopP, 1}, {"min_p", g.MinP, 0}, {"repetition_penalty", g.RepetitionPenalty, 1},
	} {
		if one.value != one.off {
			all = append(all, fmt.Sprintf("%s=%g", one.name, one.value))
		}
	}
	return strings.Join(all, " ")
}

// LoadGenerationConfig reads generation_config.json of the model folder dir; without the file all fields have their
// defaults. Token ids outside the vocabulary are dropped. A field out of range is an error that names file and field.
func LoadGenerationConfig(dir string, c *Config) (GenerationConfig, error) {
	path := filepath.Join(dir, "generation_config.json")
	data, err := smallfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte("{}"), nil
	}
	if err != nil {
		return GenerationConfig{}, fmt.Errorf("transformers: %w", err)
	}
	g, err := parseGenerationConfig(data, c.VocabSize)
	if err != nil {
		return GenerationConfig{}, fmt.Errorf("transformers: %s: %w", path, err)
	}
	return g, nil
}

func parseGenerationConfig(data []byte, vocab int) (GenerationConfig, error) {
	raw, err := files.Object(data)
	if err != nil {
		return GenerationConfig{}, err
	}
	f := &fields{raw: raw}
	g := GenerationConfig{
		EOS: f.tokens("eos_token_id", vocab), BOS: f.token("bos_token_id", vocab), Pad: f.token("pad_token_id", vocab),
		DoSample:    value(f, "do_sample", false),
		Temperature: value(f, "temperature", 1.0), TopK: value(f, "top_k", 0),
		TopP: value(f, "top_p", 1.0), MinP: value(f, "min_p", 0.0),
		RepetitionPenalty: f.positive("repetition_penalty", 1),
	}
	switch {
	case f.err != nil:
	case !(g.Temperature >= 0):
		f.fail("temperature %g is below 0", g.Temperature)
	case g.TopK < 0:
		f.fail("top_k %d is below 0", g.TopK)
	case !(g.TopP > 0 && g.TopP <= 1):
		f.fail("top_p %g is not above 0 and at most 1", g.TopP)
	case !(g.MinP >= 0 && g.MinP <= 1):
		f.fail("min_p %g is not between 0 and 1", g.MinP)
	}
	return g, f.err
}
