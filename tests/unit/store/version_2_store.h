// A store as the builds of schema version 2 wrote it, made by hand after docs/formats/store.md and accepted by
// such a build: two devices, two pools, a lease that was being cut, a quarantined one, a quota, a reservation,
// a line of the audit log, closed cleanly.
#pragma once

namespace terrace::daemon::test {

inline constexpr const char* version_2_rows = R"(
INSERT INTO device VALUES(1,'emu:cxl1','emulated',4294967296,2097152,1,0,1517826701);
INSERT INTO device VALUES(2,'emu:cxl2','emulated',4294967296,2097152,1,1,341257447);
INSERT INTO pool VALUES(1,'pool-1',1,8388608,798451211);
INSERT INTO pool VALUES(2,'empty',0,0,4161479363);
INSERT INTO lease VALUES(3,1,'alice','host-1','weights','lease-3','',
X'010000000000000040000000000000000100000000000000020000000000000041000000000000000100000000000000',3,2,1,4194304,60000000000,123456790,0,-3,5,0,1,2097152,'',3361659456);
INSERT INTO lease VALUES(4,1,'bob','host-1','','lease-4','expired',
X'010000000000000000000000000000000300000000000000',4,0,5,6291456,0,0,0,0,0,2,0,0,'lease-4-9',1454266854);
INSERT INTO quota VALUES('bob',1099511627776,7,2829214885);
INSERT INTO reservation VALUES(1,1,'alice',16777216,0,0,544476347);
INSERT INTO audit VALUES(1,1000,'uid 0 (terrace[7])','alice','grant','lease 3','4M of pool pool-1',2434854707);
INSERT INTO meta VALUES(1,1311768467294899695,9,8,-8747372972472839613,0,3,3,6,6,2,'boot',348782247);
)";

}  // namespace terrace::daemon::test
