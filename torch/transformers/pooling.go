package transformers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/smallfile"
)

// How token vectors become one vector per text.
const (
	// PoolMean is the mean over the text's tokens, special ones included.
	PoolMean = "mean"
	// PoolFamily is the pooling of the family's sequence classifiers; for bert the first token through the pooler and
	// tanh.
	PoolFamily = "family"
)

// PoolingOf returns the pooling that a model folder was trained with: PoolMean if modules.json of sentence-transformers
// has a Pooling module whose config.json says mean, else PoolFamily. An unreadable modules.json or Pooling config is an
// error.
func PoolingOf(dir string) (string, error) {
	path := filepath.Join(dir, "modules.json")
	data, err := smallfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return PoolFamily, nil
	}
	if err != nil {
		return "", fmt.Errorf("transformers: %w", err)
	}
	type module struct {
		Path string `json:"path"`
		Type string `json:"type"`
	}
	var modules []module
	if err := json.Unmarshal(data, &modules); err != nil {
		return "", fmt.Errorf("transformers: %s: %w", path, err)
	}
	for _, m := range modules {
		// Releases moved the class between packages; only its name is stable.
		if m.Type != "Pooling" && !strings.HasSuffix(m.Type, ".Pooling") {
			continue
		}
		if m.Path == "" || !filepath.IsLocal(m.Path) {
			return "", fmt.Errorf("transformers: %s: the Pooling module's path %.120q leaves the folder", path, m.Path)
		}
		return poolingMode(filepath.Join(dir, m.Path, "config.json"))
	}
	return PoolFamily, nil
}

// poolingMode reads both spellings of a Pooling config: one field that names the mode, and one boolean per mode, of
// which only mean may be set.
func poolingMode(path string) (string, error) {
	data, err := smallfile.Read(path)
	if err != nil {
		return "", fmt.Errorf("transformers: %w", err)
	}
	raw, err := files.Object(data)
	if err != nil {
		return "", fmt.Errorf("transformers: %s: %w", path, err)
	}
	f := &fields{raw: raw}
	mean := false
	if f.has("pooling_mode") {
		mean = text(f, "pooling_mode", "") == "mean"
	} else {
		mean = value(f, "pooling_mode_mean_tokens", false)
		for key := range raw {
			if strings.HasPrefix(key, "pooling_mode_") && key != "pooling_mode_mean_tokens" && value(f, key, false) {
				mean = false
			}
		}
	}
	if f.err != nil {
		return "", fmt.Errorf("transformers: %s: %w", path, f.err)
	}
	if mean {
		return PoolMean, nil
	}
	return PoolFamily, nil
}
