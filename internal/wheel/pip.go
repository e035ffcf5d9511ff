package wheel

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

const publicIndex = "https://pypi.org/simple"

// settings are those of pip that say where its packages are.
type settings struct {
	indexes []string // addresses without a trailing slash
	links   []string // folders with wheels
	cert    string   // file with certificates
	proxy   *url.URL // nil: the environment's
}

// readSettings reads pip's configuration files and environment variables, by pip's rules: a user's file overrides a global
// one, that of a virtual environment overrides both, and variables override files.
func readSettings() (settings, error) {
	values, err := readFiles(configFiles())
	if err != nil {
		return settings{}, err
	}
	get := func(name string) string {
		if value := os.Getenv("PIP_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))); value != "" {
			return value
		}
		return cmp.Or(values["install."+name], values["global."+name])
	}
	s := settings{cert: get("cert")}
	if !isTrue(get("no-index")) {
		s.indexes = append([]string{cmp.Or(get("index-url"), publicIndex)}, strings.Fields(get("extra-index-url"))...)
	}
	for i, index := range s.indexes {
		u, err := url.Parse(index)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return settings{}, fmt.Errorf("pip's index-url or extra-index-url is %.200q; want an address such as %s", redacted(index), publicIndex)
		}
		s.indexes[i] = strings.TrimRight(index, "/")
	}
	for _, link := range strings.Fields(get("find-links")) {
		link = strings.TrimPrefix(link, "file://")
		if !strings.Contains(link, "://") {
			s.links = append(s.links, link)
		}
	}
	if text := get("proxy"); text != "" {
		if !strings.Contains(text, "://") {
			text = "http://" + text
		}
		if s.proxy, err = url.Parse(text); err != nil || s.proxy.Host == "" {
			return settings{}, fmt.Errorf("pip's proxy is %.200q; want an address such as http://proxy:3128", redacted(text))
		}
	}
	return s, nil
}

// redacted is an address without its login.
func redacted(address string) string {
	return address[strings.LastIndexByte(address, '@')+1:]
}

// isTrue reads a boolean as pip does.
func isTrue(text string) bool {
	switch strings.ToLower(text) {
	case "1", "y", "yes", "t", "true", "on":
		return true
	}
	return false
}

// configFiles are the paths of pip's configuration files, later ones overriding.
func configFiles() []string {
	own := os.Getenv("PIP_CONFIG_FILE")
	if own == os.DevNull {
		return nil // pip reads no files at all then
	}
	var paths []string
	for _, dir := range filepath.SplitList(cmp.Or(os.Getenv("XDG_CONFIG_DIRS"), "/etc/xdg")) {
		paths = append(paths, filepath.Join(dir, "pip", "pip.conf"))
	}
	paths = append(paths, "/etc/pip.conf")
	if home, err := os.UserHomeDir(); err == nil {
		paths = append(paths, filepath.Join(home, ".pip", "pip.conf"),
			filepath.Join(cmp.Or(os.Getenv("XDG_CONFIG_HOME"), filepath.Join(home, ".config")), "pip", "pip.conf"))
	}
	if venv := os.Getenv("VIRTUAL_ENV"); venv != "" {
		paths = append(paths, filepath.Join(venv, "pip.conf"))
	}
	if own != "" {
		paths = append(paths, own)
	}
	return paths
}

// readFiles reads the configuration files that exist: values by section and name, as "global.index-url".
func readFiles(paths []string) (map[string]string, error) {
	values := map[string]string{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading pip's configuration: %w", err)
		}
		if err := parseConfig(data, values); err != nil {
			return nil, fmt.Errorf("%s:%w", path, err)
		}
	}
	return values, nil
}

// parseConfig adds the values of a configuration file. An indented line continues the value before it. Errors begin with
// the line.
func parseConfig(data []byte, values map[string]string) error {
	section, key := "", ""
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, len(data)+1)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		text := strings.TrimSpace(line)
		if text == "" || text[0] == '#' || text[0] == ';' {
			continue
		}
		if key != "" && (line[0] == ' ' || line[0] == '\t') {
			values[key] = strings.TrimSpace(values[key] + "\n" + text)
			continue
		}
		if text[0] == '[' {
			end := strings.IndexByte(text, ']')
			if end < 2 {
				return fmt.Errorf("%d: %.80q is no section; want [NAME]", n, text)
			}
			section, key = text[1:end], ""
			continue
		}
		at := strings.IndexAny(text, "=:")
		if at < 1 || section == "" {
			return fmt.Errorf("%d: %.80q is not NAME = VALUE in a section", n, text)
		}
		name := strings.ReplaceAll(strings.ToLower(strings.TrimSpace(text[:at])), "_", "-")
		key = section + "." + strings.TrimPrefix(name, "--")
		values[key] = strings.TrimSpace(text[at+1:])
	}
	return lines.Err()
}
