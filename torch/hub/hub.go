// Package hub finds models and datasets: in folders of the user's own, in the cache that `make` fills, in the
// cache shared with Hugging Face's Python packages, and on the Hugging Face Hub, from which it downloads what
// is missing into that cache.
//
// The environment is that of huggingface_hub: HF_HOME, HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE and XDG_CACHE_HOME
// place the cache; HF_ENDPOINT names another Hub; HF_TOKEN, HUGGING_FACE_HUB_TOKEN or the file of HF_TOKEN_PATH
// holds the token, which HF_HUB_DISABLE_IMPLICIT_TOKEN keeps back; HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE (for
// datasets HF_DATASETS_OFFLINE too) forbid the network; HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT are the
// seconds to wait for an answer and for the next bytes of a file, 10 by default. RLTRAIN_CACHE places the cache
// of `make`.
package hub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A Client finds models and datasets and downloads what is missing. The zero value is ready to use.
type Client struct {
	// Progress hears how far the downloads of one Model or Dataset call for a repository are, in bytes. total
	// grows when more files become known, such as the shards of a model. Calls never overlap.
	Progress func(repository string, done, total int64)
	// Warn hears, in one line, what the user should know though the call goes on. Calls may overlap.
	Warn func(message string)
	// GGUFFile names the GGUF file of models that are folders or repositories; "" takes the Hugging Face layout where there
	// is one, else the only GGUF file.
	GGUFFile string

	transport http.RoundTripper                                // nil: net/http's own
	sleep     func(ctx context.Context, d time.Duration) error // nil: the clock's
}

// Need says which files of a model a caller reads. Configuration, tokenizer and chat templates always come.
type Need int

const (
	// Weights come too: safetensors, pytorch_model.bin only where there are none, adapters and heads.
	Weights Need = iota
	// NoWeights leaves the model's own on the Hub; adapters and heads come.
	NoWeights
)

// Model is a folder in the Hugging Face layout with a config.json, an adapter_config.json or both. That of a GGUF file
// has a link to the file in the place of weights.
type Model struct {
	Dir string
	// Name is what saved files should call it: the absolute path of a folder or file, org/name of a repository,
	// org/name/FILE.gguf of a file in one.
	Name string
	// Commit is the repository's commit, 40 hexadecimal digits; "" for a folder and for the cache of `make`.
	Commit string
}

// CacheDir is where `make` keeps downloads: $RLTRAIN_CACHE, else rltrain in the user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("RLTRAIN_CACHE"); dir != "" {
		return dir, nil
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the user's cache folder: %w", err)
	}
	return filepath.Join(base, "rltrain"), nil
}

// Model finds a model: a folder; a GGUF file; one of [KnownModels], which it fetches on first use; a name in rltrain's own cache ("sentence-transformers/all-MiniLM-L6-v2", or its
// last part where that is not ambiguous); or a repository of the Hub, org/name or org/name@revision, where a
// revision is a branch, a tag or a commit and "main" by default, or a GGUF file in one, org/name/FILE.gguf. Of a repository it fetches what is needed and
// not in the cache. A branch is looked up each time; where the Hub gives no answer or no access, what the cache
// holds of it is used with a warning. Errors are one line and say what to do.
func (c *Client) Model(ctx context.Context, model string, need Need) (Model, error) {
	if info, statErr := os.Stat(model); statErr == nil {
		return c.folder(model, info)
	} else if !errors.Is(statErr, fs.ErrNotExist) {
		return Model{}, fmt.Errorf("model: %w", statErr)
	}
	if filepath.IsAbs(model) || strings.HasPrefix(model, ".") {
		return Model{}, fmt.Errorf("model folder %s does not exist", model)
	}
	if _, ok := knownModel(model); ok {
		return c.Pull(ctx, model)
	}
	cache, err := CacheDir()
	if err != nil {
		return Model{}, err
	}
	models := filepath.Join(cache, "models")
	model, file, ok := repoGGUF(model)
	if !ok {
		file = c.GGUFFile
	}
	r, err := parseRepo(modelKind, model)
	if err != nil {
		return Model{}, fmt.Errorf("model folder %q does not exist, and it names no repository: %w", model, err)
	}
	if found, err := ownCache(models, model); err != nil || found.Dir != "" {
		return found, err
	}
	s, err := c.session(r)
	if err != nil {
		return Model{}, fmt.Errorf("model %s: %w", r, err)
	}
	found, err := s.model(ctx, need, file)
	var nothing unknown
	if errors.As(err, &nothing) {
		return Model{}, fmt.Errorf("model %q is neither a folder nor in %s, nor one of those that `rltrain models` lists, and %w", model, models, err)
	}
	if err != nil {
		return Model{}, fmt.Errorf("model %s: %w", r, err)
	}
	return found, nil
}

// folder is the model in a folder or file of the user's own.
func (c *Client) folder(model string, info fs.FileInfo) (Model, error) {
	dir, err := filepath.Abs(model)
	if err != nil {
		return Model{}, fmt.Errorf("model %s: %w", model, err)
	}
	if !info.IsDir() {
		if err := checkModelFile(model, info); err != nil {
			return Model{}, err
		}
		return imported(dir, dir)
	}
	file, err := c.folderGGUF(dir)
	if err != nil {
		return Model{}, fmt.Errorf("model %s: %w", model, err)
	}
	if file != "" {
		return imported(file, file)
	}
	if !exists(filepath.Join(dir, configFile)) && !exists(filepath.Join(dir, adapterFile)) {
		return Model{}, fmt.Errorf("model folder %s has neither a %s nor a GGUF file: it is no model", model, configFile)
	}
	return Model{Dir: dir, Name: dir}, nil
}

// ownCache is the model in the cache that `make` fills, and no model where there is none of that name.
func ownCache(models, model string) (Model, error) {
	pattern := filepath.Join(models, model, configFile)
	if !strings.Contains(model, "/") {
		pattern = filepath.Join(models, "*", model, configFile)
	}
	found, err := filepath.Glob(pattern)
	if err != nil {
		return Model{}, fmt.Errorf("model %q: %w", model, err)
	}
	switch len(found) {
	case 0:
		return Model{}, nil
	case 1:
		dir := filepath.Dir(found[0])
		name, err := filepath.Rel(models, dir)
		return Model{Dir: dir, Name: filepath.ToSlash(name)}, err
	default:
		return Model{}, fmt.Errorf("model %q is ambiguous: %s; give the whole name", model, strings.Join(found, ", "))
	}
}

// CheckBase is an error where the folder holds no model of its own: an adapter.
func (m Model) CheckBase() error {
	if exists(filepath.Join(m.Dir, configFile)) {
		return nil
	}
	return fmt.Errorf("%s has no %s: it holds an adapter, not a base model", m.Dir, configFile)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
