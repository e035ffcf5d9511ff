package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/internal/libtorch"
	"github.com/rltrain/rltrain/internal/wheel"
)

// The parts of CycloneDX 1.5 that the list of components uses.
type (
	bom struct {
		Format        string    `json:"bomFormat"`
		Specification string    `json:"specVersion"`
		Serial        string    `json:"serialNumber"`
		Version       int       `json:"version"`
		Metadata      bomAbout  `json:"metadata"`
		Components    []bomPart `json:"components"`
	}
	bomAbout struct {
		Timestamp string  `json:"timestamp"`
		Component bomPart `json:"component"`
	}
	bomPart struct {
		Type     string       `json:"type"`
		Name     string       `json:"name"`
		Version  string       `json:"version"`
		Scope    string       `json:"scope,omitempty"`
		PURL     string       `json:"purl"`
		Licences []bomLicence `json:"licenses,omitempty"`
		Hashes   []bomHash    `json:"hashes,omitempty"`
	}
	bomLicence struct {
		Expression string `json:"expression"`
	}
	bomHash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
)

// sbom lists what the packages contain, and the wheels that rltrain setup downloads, those for GPUs as optional.
func (r *release) sbom(all []component) ([]byte, error) {
	own := bomPart{Type: "application", Name: "rltrain", Version: r.version, PURL: "pkg:pypi/rltrain@" + r.version, Licences: []bomLicence{{"Apache-2.0"}}}
	b := bom{Format: "CycloneDX", Specification: "1.5", Version: 1, Metadata: bomAbout{r.commit.Format("2006-01-02T15:04:05Z"), own}}
	for _, c := range all {
		b.Components = append(b.Components, bomPart{Type: "library", Name: c.name, Version: c.version, PURL: c.purl, Licences: []bomLicence{{c.licence}}})
	}
	seen := map[string]bool{}
	type scoped struct {
		wheel.Set
		scope string
	}
	sets := []scoped{{libtorch.CPU(false), "required"}}
	if libtorch.ForGPUs {
		sets = append(sets, scoped{libtorch.CUDA(), "optional"})
	}
	for _, set := range sets {
		for _, part := range set.Parts {
			if seen[part.File] {
				continue
			}
			seen[part.File] = true
			version := strings.Split(part.File, "-")[1]
			b.Components = append(b.Components, bomPart{
				Type: "library", Name: part.Project, Version: version, Scope: set.scope, PURL: fmt.Sprintf("pkg:pypi/%s@%s", part.Project, version),
				Hashes: []bomHash{{"SHA-256", part.SHA256}},
			})
		}
	}
	text, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	s := sha256.Sum256(text)
	s[6], s[8] = s[6]&0x0f|0x40, s[8]&0x3f|0x80 // a UUID of version 4
	b.Serial = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", s[:4], s[4:6], s[6:8], s[8:10], s[10:16])
	return json.MarshalIndent(b, "", "  ")
}
