// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

const (
	parametersVersion = "terrace.dev/v1"
	parametersKind    = "LeaseParameters"
	// Shorter ones would end with a driver that is updated, or a manager that is restarted.
	ttlMin = 5 * time.Minute
	ttlMax = 30 * 24 * time.Hour
)

// parameters are what a claim, or its class, says beside the size. What they leave out has a default that is right for a pod
// that maps the file by itself.
type parameters struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Mode       string `json:"mode,omitempty"`
	TTL        string `json:"ttl,omitempty"`
	Movable    bool   `json:"movable,omitempty"`
	Path       string `json:"path,omitempty"`
	ReadOnly   bool   `json:"readOnly,omitempty"`
	User       *int64 `json:"user,omitempty"`

	ttl time.Duration
}

var modes = []string{"exclusive", "shared_coherent", "shared_read_only"}

// Where a mount would hide what every program needs.
var pathsTaken = []string{"/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var"}

func readParameters(raw []byte) (parameters, error) {
	var read parameters
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&read); err != nil {
		return read, fmt.Errorf("%v; there are mode, ttl, movable, path, readOnly and user", err)
	}
	if read.APIVersion != parametersVersion || read.Kind != parametersKind {
		return read, fmt.Errorf("apiVersion and kind are %q and %q; this driver knows %s and %s", read.APIVersion, read.Kind,
			parametersVersion, parametersKind)
	}
	return read, read.check()
}

func (p *parameters) check() error {
	if p.Mode != "" && !slices.Contains(modes, p.Mode) {
		return fmt.Errorf("mode %q: say one of %s", p.Mode, strings.Join(modes, ", "))
	}
	if p.Movable {
		return fmt.Errorf("movable: true: the memory of a container stays where it is, since nothing in there can be asked to " +
			"let go of it; leave it out")
	}
	if p.TTL != "" {
		ttl, err := time.ParseDuration(p.TTL)
		if err != nil || ttl < ttlMin || ttl > ttlMax {
			return fmt.Errorf("ttl %q: say a duration from %v to %v, as 30m; without one the lease lives as long as the claim is in use",
				p.TTL, ttlMin, ttlMax)
		}
		p.ttl = ttl
	}
	if p.Path != "" && (!path.IsAbs(p.Path) || path.Clean(p.Path) != p.Path || slices.Contains(pathsTaken, p.Path)) {
		return fmt.Errorf("path %q: say an absolute path of a file in the container, without .. and not one of %s", p.Path,
			strings.Join(pathsTaken, " "))
	}
	if p.User != nil && (*p.User < 0 || *p.User >= 1<<32-1) {
		return fmt.Errorf("user %d: say the uid that the container's program has", *p.User)
	}
	return nil
}

// parametersOf merges what concerns a request: what the class says first, then what the claim says, field by field.
func parametersOf(all []resourceapi.DeviceAllocationConfiguration, driver, request string) (parameters, error) {
	merged := parameters{}
	for _, source := range []resourceapi.AllocationConfigSource{resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim} {
		for _, config := range all {
			parent, _, _ := strings.Cut(request, "/")
			concerns := len(config.Requests) == 0 || slices.Contains(config.Requests, request) || slices.Contains(config.Requests, parent)
			if config.Source != source || config.Opaque == nil || config.Opaque.Driver != driver || !concerns {
				continue
			}
			read, err := readParameters(config.Opaque.Parameters.Raw)
			if err != nil {
				return merged, fmt.Errorf("parameters of the %s for request %s: %w",
					map[bool]string{true: "class", false: "claim"}[source == resourceapi.AllocationConfigSourceClass], request, err)
			}
			merged.take(read)
		}
	}
	if merged.Mode == "" {
		merged.Mode = modes[0]
	}
	return merged, nil
}

func (p *parameters) take(other parameters) {
	if other.Mode != "" {
		p.Mode = other.Mode
	}
	if other.TTL != "" {
		p.TTL, p.ttl = other.TTL, other.ttl
	}
	if other.Path != "" {
		p.Path = other.Path
	}
	if other.User != nil {
		p.User = other.User
	}
	p.ReadOnly = p.ReadOnly || other.ReadOnly
}
