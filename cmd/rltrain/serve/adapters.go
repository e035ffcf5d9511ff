package serve

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/rltrain/rltrain/lora"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// card is an entry of /v1/models.
type card struct {
	ID       string  `json:"id"`
	Object   string  `json:"object"`
	Created  int64   `json:"created"`
	OwnedBy  string  `json:"owned_by"`
	Root     string  `json:"root"`
	Parent   *string `json:"parent"`
	MaxModel int     `json:"max_model_len"`
}

func (s *Server) card(l *lane) card {
	c := card{ID: l.name, Object: "model", Created: s.started.Unix(), OwnedBy: "rltrain", Root: l.decider.BaseModel(), MaxModel: l.decider.Longest()}
	if l.dir != "" {
		c.Root, c.Parent = l.dir, &s.config.Name
	}
	return c
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) error {
	s.lock.Lock()
	cards := []card{}
	for _, name := range s.names {
		cards = append(cards, s.card(s.lanes[name]))
	}
	s.lock.Unlock()
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": cards})
	return nil
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) error {
	l, err := s.lane(r.PathValue("name"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, s.card(l))
	return nil
}

// lane returns the lane of a model name.
func (s *Server) lane(name string) (*lane, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if l, ok := s.lanes[name]; ok {
		return l, nil
	}
	return nil, refuse(http.StatusNotFound, "model", "model %.200q not found; available: %s", name, strings.Join(s.names, ", "))
}

// open makes a lane available to requests. It must run on the engine's thread.
func (s *Server) open(l *lane) {
	s.engine.lanes = append(s.engine.lanes, l)
	s.lock.Lock()
	defer s.lock.Unlock()
	s.lanes[l.name] = l
	s.names = append(s.names, l.name)
}

// load opens a lane for an adapter. It must run on the engine's thread.
func (s *Server) load(name, dir string) error {
	s.lock.Lock()
	_, taken := s.lanes[name]
	s.lock.Unlock()
	switch {
	case s.base == nil:
		return errNoText
	case taken:
		// Ranks that share this server look for vLLM's words "already been loaded".
		return bad("lora_name", "adapter %q has already been loaded; unload it first, or choose another name", name)
	case len(s.engine.lanes) > s.config.MaxAdapters:
		return bad("lora_name", "%d adapters are loaded, the limit of --max-adapters; unload one first", len(s.engine.lanes)-1)
	case s.engine.sampler == nil:
		return errFailed
	}
	p, err := s.base.WithAdapter(dir)
	if err != nil {
		return err
	}
	decider, err := p.Decider()
	number := 0
	if err == nil {
		number, err = s.engine.sampler.Load(p)
	}
	if err != nil {
		p.Close()
		return err
	}
	s.open(&lane{name: name, dir: dir, policy: p, adapter: number, decider: decider})
	return nil
}

// adapterOrder is the body of a request to load or unload an adapter.
type adapterOrder struct {
	Name    string `json:"lora_name"`
	Path    string `json:"lora_path"`
	InPlace bool   `json:"load_inplace"`
	ID      *int   `json:"lora_int_id"` // ignored, as in vLLM
}

// longestName is the maximum length of an adapter's name in bytes.
const longestName = 256

func (s *Server) adapterOrder(w http.ResponseWriter, r *http.Request) (o adapterOrder, err error) {
	if s.stops() {
		return o, errStopped
	}
	if err = s.readBody(w, r, longestOrder, &o, nil); err != nil {
		return o, err
	}
	switch {
	case o.Name == "" || len(o.Name) > longestName:
		return o, bad("lora_name", "lora_name has %d bytes, want 1 to %d", len(o.Name), longestName)
	case strings.ContainsFunc(o.Name, func(c rune) bool { return !unicode.IsPrint(c) }):
		return o, bad("lora_name", "lora_name contains characters that cannot be printed")
	case o.InPlace:
		return o, bad("load_inplace", "load_inplace is not supported; load the new version under another name")
	}
	return o, nil
}

func (s *Server) loadAdapter(w http.ResponseWriter, r *http.Request) error {
	o, err := s.adapterOrder(w, r)
	if err != nil {
		return err
	}
	dir, err := s.within(o.Path)
	if err != nil {
		return err
	}
	err = s.engine.ask(r.Context(), func() error { return s.load(o.Name, dir) })
	var known *refusal
	switch {
	case err == nil:
	case errors.As(err, &known) || errors.Is(err, errStopped) || r.Context().Err() != nil:
		return err
	default:
		return bad("lora_path", "%v", err)
	}
	s.config.Logf("loaded adapter %s from %s", o.Name, dir)
	return say(w, "Success: LoRA adapter '%s' added successfully.", o.Name)
}

func (s *Server) unloadAdapter(w http.ResponseWriter, r *http.Request) error {
	o, err := s.adapterOrder(w, r)
	if err != nil {
		return err
	}
	s.lock.Lock()
	l := s.lanes[o.Name]
	if l == nil || l.dir == "" {
		s.lock.Unlock()
		return refuse(http.StatusNotFound, "lora_name", "adapter %q not found", o.Name)
	}
	delete(s.lanes, o.Name)
	s.names = slices.DeleteFunc(s.names, func(name string) bool { return name == o.Name })
	s.lock.Unlock()
	s.engine.order(func() { l.retired = true })
	s.config.Logf("unloaded adapter %s", o.Name)
	return say(w, "Success: LoRA adapter '%s' removed successfully.", o.Name)
}

func say(w http.ResponseWriter, format string, args ...any) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, err := fmt.Fprintf(w, format+"\n", args...)
	return err
}

// within resolves the folder of an adapter and checks that the folder and its files are inside an allowed folder. It does
// not touch other paths, so that responses do not reveal whether they exist.
func (s *Server) within(path string) (string, error) {
	denied := refuse(http.StatusForbidden, "lora_path", "lora_path is outside the folders of --adapter-dir")
	if path == "" {
		return "", bad("lora_path", "lora_path is missing")
	}
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return "", bad("lora_path", "lora_path must be the absolute path of a folder")
	}
	for _, given := range s.config.AdapterDirs {
		named, err := filepath.Abs(given)
		if err != nil {
			continue
		}
		root, err := filepath.EvalSymlinks(named)
		if err != nil || !inside(root, filepath.Clean(path)) && !inside(named, filepath.Clean(path)) {
			continue
		}
		dir, err := filepath.EvalSymlinks(path)
		if err != nil {
			return "", refuse(http.StatusNotFound, "lora_path", "folder %.300q not found", path)
		}
		for _, name := range []string{"", lora.ConfigFile, lora.WeightsFile} {
			real, err := filepath.EvalSymlinks(filepath.Join(dir, name))
			if err != nil {
				return "", refuse(http.StatusNotFound, "lora_path", "no %s in %.300q", name, path)
			}
			if !inside(root, real) {
				return "", denied
			}
		}
		return dir, nil
	}
	return "", denied
}

func inside(root, path string) bool {
	rel, err := filepath.Rel(root, path)
	return err == nil && filepath.IsLocal(rel)
}
