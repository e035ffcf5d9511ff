// Package hub finds models and datasets: in the user's folders, in rltrain's cache, in the cache shared with Hugging
// Face's Python packages, and on the Hugging Face Hub. It downloads what is missing into the caches.
//
// It reads the environment of huggingface_hub. HF_HOME, HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE and XDG_CACHE_HOME set the
// cache folder. HF_ENDPOINT sets the Hub's address. The token comes from HF_TOKEN, HUGGING_FACE_HUB_TOKEN or the file
// HF_TOKEN_PATH, unless HF_HUB_DISABLE_IMPLICIT_TOKEN is set. HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE forbid the
// network, as does HF_DATASETS_OFFLINE for datasets. HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT limit the wait
// for a response and for further bytes, in seconds (default 10). RLTRAIN_CACHE sets rltrain's cache folder.
package hub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// A Client finds models and datasets and downloads what is missing. The zero value is ready to use.
type Client struct {
	// Progress reports the downloads of one call, in bytes. total grows as more files become known, such
	// as the shards of a model. Calls never overlap.
	Progress func(repository string, done, total int64)
	// Warn receives one-line warnings; the call continues. Calls may overlap.
	Warn func(message string)

	transport http.RoundTripper                                // nil: net/http's default
	sleep     func(ctx context.Context, d time.Duration) error // nil: the system clock
	commits   sync.Map                                         // of the repositories found, by the name asked for
}

// Commit is the commit of a repository of the Hub that this client has found by name, "" if it has found none.
func (c *Client) Commit(name string) string {
	commit, _ := c.commits.Load(name)
	text, _ := commit.(string)
	return text
}

// Need says which files of a model the caller reads. Configuration, tokenizer and chat templates are always fetched.
type Need int

const (
	// Weights fetches safetensors, pytorch_model.bin if there is no safetensors file, adapters and heads.
	Weights Need = iota
	// NoWeights skips the model's weights but fetches adapters and heads.
	NoWeights
)

// Model is a folder in the Hugging Face layout with config.json, adapter_config.json or both. The folder of a GGUF
// file has a link to the file instead of weights.
type Model struct {
	Dir string
	// Name is the model's name for saved files: the absolute path of a folder or file, org/name of a repository, or
	// org/name/FILE.gguf of a file in a repository.
	Name string
	// Commit is the repository's commit in 40 hexadecimal digits; "" for local models.
	Commit string
}

// CacheDir is rltrain's cache folder: $RLTRAIN_CACHE, or rltrain in the user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("RLTRAIN_CACHE"); dir != "" {
		return dir, nil
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "rltrain"), nil
	}
	home, err := homeDir()
	if err != nil {
		return "", fmt.Errorf("finding the user's cache folder: %w; set RLTRAIN_CACHE", err)
	}
	return filepath.Join(home, ".cache", "rltrain"), nil
}

// homeDir is the user's home folder: $HOME, else that of the user's entry. Services and containers often have no $HOME.
func homeDir() (string, error) {
	if home, err := os.UserHomeDir(); err == nil {
		return home, nil
	}
	entry, err := user.Current()
	if err != nil {
		return "", err
	}
	if entry.HomeDir == "" {
		return "", errors.New("$HOME is not set")
	}
	return entry.HomeDir, nil
}

// Model finds a model. model is one of:
//
// - a folder or a GGUF file
// - a name of [KnownModels], downloaded on first use
// - a name in rltrain's cache ("sentence-transformers/all-MiniLM-L6-v2", or its last part if that is unique)
// - a repository of the Hub: org/name or org/name@revision, with a branch, tag or commit (default "main")
// - a GGUF file in a repository: org/name/FILE.gguf
//
// Model downloads the files of a repository that are needed and not cached. It looks a branch up each time; if the Hub
// does not respond or denies access, it warns and uses the cache. Errors are one line and say what to do.
func (c *Client) Model(ctx context.Context, model string, need Need) (Model, error) {
	if info, statErr := os.Stat(model); statErr == nil {
		return folder(model, info)
	} else if !errors.Is(statErr, fs.ErrNotExist) {
		return Model{}, fmt.Errorf("model: %w", statErr)
	}
	if filepath.IsAbs(model) || strings.HasPrefix(model, ".") {
		return Model{}, fmt.Errorf("model folder %s does not exist", model)
	}
	if _, ok := knownModel(model); ok {
		return c.Pull(ctx, model)
	}
	models := ""
	if cache, err := CacheDir(); err == nil { // else the Hub's cache may do
		models = filepath.Join(cache, "models")
	}
	asked := model
	model, file := repoGGUF(model)
	r, err := parseRepo(modelKind, model)
	if err != nil {
		return Model{}, fmt.Errorf("model folder %q does not exist, and it names no repository: %w", model, err)
	}
	if models != "" {
		if found, err := ownCache(models, model); err != nil || found.Dir != "" {
			return found, err
		}
	}
	s, err := c.session(r)
	if err != nil {
		return Model{}, fmt.Errorf("model %s: %w", r, err)
	}
	found, err := s.model(ctx, need, file)
	if notFound(err) {
		return Model{}, fmt.Errorf("model %q is neither a folder nor in %s, nor one of those that `rltrain models` lists, and %w", model, models, err)
	}
	if err != nil {
		return Model{}, fmt.Errorf("model %s: %w", r, err)
	}
	c.commits.Store(asked, found.Commit)
	return found, nil
}

// folder is the model in a local folder or file.
func folder(model string, info fs.FileInfo) (Model, error) {
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
	file, err := folderGGUF(dir)
	if err != nil {
		return Model{}, fmt.Errorf("model %s: %w", model, err)
	}
	if file != "" {
		return imported(file, file)
	}
	if !exists(filepath.Join(dir, configFile)) && !exists(filepath.Join(dir, adapterFile)) {
		return Model{}, fmt.Errorf("model folder %s has neither a %s nor a GGUF file: it is not a model", model, configFile)
	}
	return Model{Dir: dir, Name: dir}, nil
}

// ownCache is the model of this name in rltrain's cache; the zero Model if there is none.
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
		return Model{}, fmt.Errorf("model %q is ambiguous: %s; give the full name", model, strings.Join(found, ", "))
	}
}

// CheckBase returns an error if the folder has only an adapter.
func (m Model) CheckBase() error {
	if exists(filepath.Join(m.Dir, configFile)) {
		return nil
	}
	return fmt.Errorf("%s has no %s: it is an adapter, not a base model", m.Dir, configFile)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
