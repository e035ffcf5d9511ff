package tinker

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// savedFile says where the service keeps the weights of a folder.
const savedFile = "tinker.json"

// saved is its content.
type saved struct {
	Path string         `json:"path"` // tinker://...
	Rank int            `json:"rank"`
	Kept map[int]string `json:"kept,omitempty"` // paths of other weights of the run by number

	Spent costs `json:"spent,omitzero"` // since the last step
}

func readSaved(dir string) (s saved, err error) {
	path := filepath.Join(dir, savedFile)
	err = files.LoadJSON(path, &s)
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("%s was not trained on a service with Tinker's API, which takes no weights from files: it has no %s", dir, savedFile)
	}
	if err == nil && (s.Path == "" || s.Rank < 1) {
		err = fmt.Errorf("%s: path or rank is missing", path)
	}
	return s, err
}

// SaveWeights implements run.Weights: the service keeps the weights and the moments; the folder gets their path.
func (p *Policy) SaveWeights(dir string) error {
	path, err := p.model.save(p.ctx)
	if err != nil {
		return fmt.Errorf("saving weights on the service: %w", err)
	}
	return files.SaveJSON(filepath.Join(dir, savedFile), saved{Path: path, Rank: p.config.Rank, Kept: p.kept, Spent: p.spent})
}

// LoadWeights implements run.Weights: it takes over what SaveWeights kept.
func (p *Policy) LoadWeights(dir string) error {
	s, err := readSaved(dir)
	if err != nil {
		return err
	}
	if err := p.model.load(p.ctx, s.Path, true); err != nil {
		return fmt.Errorf("loading weights on the service: %w", err)
	}
	if s.Kept != nil {
		p.kept = s.Kept
	}
	p.spent = s.Spent
	p.Changed()
	return nil
}

// Keep implements run.Keeper: the service keeps the weights, which get a number from 1.
func (p *Policy) Keep() (number int, err error) {
	number = len(p.kept) + 1
	p.kept[number], err = p.model.save(p.ctx)
	return number, err
}

// Return implements run.Keeper.
func (p *Policy) Return(number int) error { return p.model.load(p.ctx, p.kept[number], true) }

// Save downloads the adapter into a folder that PEFT and rltrain load, and keeps the weights on the service for another stage.
func (p *Policy) Save(dir string) error {
	if err := p.save(dir); err != nil {
		return fmt.Errorf("saving the policy: %w", err)
	}
	return nil
}

func (p *Policy) save(dir string) error {
	path, err := p.model.saved(p.ctx, "save_weights_for_sampler", map[string]any{})
	if err != nil {
		return err
	}
	temporary, err := os.MkdirTemp(dir, ".download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	if err := p.service.download(p.ctx, path, temporary); err != nil {
		return err
	}
	if err := complete(temporary); err != nil {
		return fmt.Errorf("the service's adapter: %w", err)
	}
	a, err := lora.Load(temporary)
	if err != nil {
		return fmt.Errorf("the service's adapter: %w", err)
	}
	a.Config.BaseModel = p.text.BaseModel
	if err := lora.Save(dir, a.Config, a.Pairs, nil); err != nil {
		return err
	}
	if err := p.text.SaveText(dir); err != nil {
		return err
	}
	return p.SaveWeights(dir)
}

// complete names the adapted modules in the configuration of an adapter that does not, as SkyRL's.
func complete(dir string) error {
	path, config := filepath.Join(dir, lora.ConfigFile), map[string]any{}
	if err := files.LoadJSON(path, &config); err != nil {
		return err
	}
	if config["target_modules"] != nil {
		return nil
	}
	weights, err := safetensors.Open(filepath.Join(dir, lora.WeightsFile))
	if err != nil {
		return err
	}
	defer weights.Close()
	modules := map[string]bool{}
	for _, name := range weights.Names() {
		if module, _, ok := strings.Cut(name, ".lora_"); ok {
			modules[module[strings.LastIndex(module, ".")+1:]] = true
		}
	}
	config["target_modules"], config["task_type"] = slices.Sorted(maps.Keys(modules)), lora.CausalLM
	return files.SaveJSON(path, config)
}

// download writes the files of an adapter that the service keeps at path, tinker://MODEL/KIND/NAME.
func (s *service) download(ctx context.Context, path, dir string) error {
	id, name, ok := strings.Cut(strings.TrimPrefix(path, "tinker://"), "/")
	if !ok {
		return fmt.Errorf("%s: %q is no path of weights", s.url, path)
	}
	address := func(name string) string {
		return s.url + "/api/v1/training_runs/" + url.PathEscape(id) + "/checkpoints/" + name + "/archive"
	}
	body, err := s.get(ctx, s.client, address(name))
	if errors.As(err, new(missing)) { // SkyRL names them without their kind
		body, err = s.get(ctx, s.client, address(name[strings.LastIndex(name, "/")+1:]))
	}
	if err != nil {
		return err
	}
	defer body.Close()
	return unpack(body, dir)
}

// missing is an address with nothing.
type missing string

func (m missing) Error() string { return string(m) + ": not found" }

// get opens an address, or the one it points to, which needs no key.
func (s *service) get(ctx context.Context, client *http.Client, address string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	answer.Body.Close()
	switch location, _ := answer.Location(); {
	case location != nil && answer.StatusCode/100 == 3:
		return s.get(ctx, http.DefaultClient, location.String())
	case answer.StatusCode == http.StatusNotFound:
		return nil, missing(address)
	}
	return nil, fmt.Errorf("%s: status %d", address, answer.StatusCode)
}

// mostArchive is the largest archive of an adapter, in bytes after decompression.
const mostArchive = 16 << 30

// unpack writes the files of an adapter out of an archive, tar or compressed tar.
func unpack(from io.Reader, dir string) error {
	buffered := bufio.NewReader(from)
	var plain io.Reader = buffered
	if head, err := buffered.Peek(2); err == nil && head[0] == 0x1f && head[1] == 0x8b {
		if plain, err = gzip.NewReader(buffered); err != nil {
			return fmt.Errorf("the archive of the adapter: %w", err)
		}
	}
	wanted := []string{lora.ConfigFile, lora.WeightsFile}
	for archive := tar.NewReader(io.LimitReader(plain, mostArchive)); len(wanted) > 0; {
		entry, err := archive.Next()
		if err != nil {
			return fmt.Errorf("the archive of the adapter: %s is missing: %w", strings.Join(wanted, ", "), err)
		}
		name := filepath.Base(entry.Name)
		at := slices.Index(wanted, name)
		if at < 0 || entry.Typeflag != tar.TypeReg {
			continue
		}
		if entry.Size > mostArchive {
			return fmt.Errorf("the archive of the adapter: %s has %d bytes, more than %d", name, entry.Size, int64(mostArchive))
		}
		wanted = slices.Delete(wanted, at, at+1)
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		_, err = io.Copy(file, archive)
		if err = errors.Join(err, file.Close()); err != nil {
			return fmt.Errorf("the archive of the adapter: %s: %w", name, err)
		}
	}
	return nil
}
