import asyncio, psutil, os, time
from tests.real.talk import *
from tests.real.processes import *
async def test_x(portico, home):
    t = await begin(portico.client, "[[plain]] hi")
    for i in range(30):
        ps = of_home(home.path)
        for p in ps:
            try: 
                if len(ps)>1: print(i, p.pid, p.ppid(), p.name(), p.status(), p.cmdline()[:3], p.environ().get("PORTICO_AGENT_ID","")[-6:], [ (x.name(), x.pid) for x in p.parents()][:3])
            except Exception as e: print(i, e)
        await asyncio.sleep(0.01)
    print("pid", os.getpid())
