package lora

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/internal/smallfile"
)

// baseHashKey is the metadata key for the hash of the base weights. PEFT complains about unknown fields in
// adapter_config.json but ignores the metadata of a safetensors header.
const baseHashKey = "base_model_sha256"

// recorded returns c as the files in dir store it, with the hash of the base weights. A base model in a local folder gets
// a path relative to dir if both are in the same output folder (so that they can be moved together), else an absolute path.
func (c Config) recorded(dir string) (Config, error) {
	info, err := os.Stat(c.BaseModel)
	if c.BaseModel == "" || c.Revision != "" || err != nil || !info.IsDir() {
		return c, nil // on the Hub, or a folder that no longer exists
	}
	base, err := filepath.Abs(c.BaseModel)
	if err != nil {
		return c, err
	}
	if c.BaseHash, err = HashWeights(base); err != nil {
		return c, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return c, err
	}
	c.BaseModel = base
	inside, err := filepath.Rel(filepath.Dir(base), dir)
	if err != nil || !filepath.IsLocal(inside) || inside == "." {
		return c, nil
	}
	// OUTPUT/STAGE, or OUTPUT/STAGE/checkpoints/checkpoint-N.
	parts := strings.Split(filepath.ToSlash(inside), "/")
	if len(parts) == 1 || len(parts) == 3 && parts[1] == "checkpoints" {
		relative, err := filepath.Rel(dir, base)
		if err != nil {
			return c, err
		}
		c.BaseModel = filepath.ToSlash(relative)
	}
	return c, nil
}

// located resolves a relative base model path ("./" or "../") of a config read in dir. If no such folder exists relative
// to dir, the path is relative to the working directory, as in PEFT.
func (c Config) located(dir string) (Config, error) {
	if !strings.HasPrefix(c.BaseModel, "./") && !strings.HasPrefix(c.BaseModel, "../") {
		return c, nil
	}
	path := filepath.Join(dir, filepath.FromSlash(c.BaseModel))
	if !isFolder(path) && isFolder(c.BaseModel) {
		path = c.BaseModel
	}
	var err error
	c.BaseModel, err = filepath.Abs(path)
	return c, err
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// CheckBase returns an error if the weights in dir differ from those that the adapter was trained on. It accepts adapters
// that do not record a hash.
func (c Config) CheckBase(dir string) error {
	if c.BaseHash == "" {
		return nil
	}
	hash, err := HashWeights(dir)
	if err != nil {
		return err
	}
	if hash != c.BaseHash {
		return fmt.Errorf("%s has other weights (SHA-256 %.12s) than the adapter was trained on (%.12s); pass the original base model", dir, hash, c.BaseHash)
	}
	return nil
}

// weightFiles match the weight files of a model, preferred layouts first.
var weightFiles = []string{"model.safetensors", "model-*.safetensors", "pytorch_model.bin", "pytorch_model-*.bin"}

// HashWeights returns the SHA-256 of a model folder's weights, in hexadecimal, or "" if it has none. It caches the hashes
// of unchanged files.
func HashWeights(dir string) (string, error) {
	for _, pattern := range weightFiles {
		names, _ := fs.Glob(os.DirFS(dir), pattern) // sorted; no pattern is malformed
		if len(names) == 0 {
			continue
		}
		all := sha256.New()
		for _, name := range names {
			sum, err := hashes.of(filepath.Join(dir, name))
			if err != nil {
				return "", fmt.Errorf("hashing the weights: %w", err)
			}
			all.Write(sum[:])
		}
		return hex.EncodeToString(all.Sum(nil)), nil
	}
	return "", nil
}

// hashes caches file hashes.
var hashes = known{sums: map[stamp][sha256.Size]byte{}}

type known struct {
	mu   sync.Mutex
	sums map[stamp][sha256.Size]byte
}

// stamp identifies the state of a file.
type stamp struct {
	path     string
	size     int64
	modified time.Time
}

func (k *known) of(path string) (sum [sha256.Size]byte, err error) {
	f, err := smallfile.Open(path)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return sum, err
	}
	key := stamp{path, info.Size(), info.ModTime()}
	k.mu.Lock()
	defer k.mu.Unlock()
	if sum, ok := k.sums[key]; ok {
		return sum, nil
	}
	hash := sha256.New()
	_, err = io.Copy(hash, f)
	hash.Sum(sum[:0])
	if err == nil {
		k.sums[key] = sum
	}
	return sum, err
}
